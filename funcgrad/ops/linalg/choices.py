"""Names of ways to compute decompositions. Here each decomposition is computed in one way."""

import enum


class SvdAlgorithm(enum.Enum):
    """Ways to compute singular values; here all mean the one that is used.

    >>> SvdAlgorithm.QR
    <SvdAlgorithm.QR: 'QR'>
    """

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


class EighImplementation(enum.Enum):
    """Ways to compute eigenvalues of Hermitian matrices; here all mean the one that is used.

    >>> EighImplementation.QR
    <EighImplementation.QR: 'qr'>
    """

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


class EigImplementation(enum.Enum):
    """Ways to compute eigenvalues; here all mean the one that is used.

    >>> EigImplementation.LAPACK
    <EigImplementation.LAPACK: 'lapack'>
    """

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"
