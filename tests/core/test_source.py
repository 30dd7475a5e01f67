"""Lines of the user's code: what equations and errors point to."""

import copy

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core import source


def test_here_is_the_callers_line():
    place = source.here()
    assert place.text == "place = source.here()"
    assert place.file == __file__
    assert str(place) == f"{__file__}:{place.line} (test_here_is_the_callers_line)"
    assert copy.deepcopy(place) is place


def test_equations_name_the_users_line():
    def f(x):
        y = fnp.sin(x)
        return fnp.sum(y * y)

    sin, mul, total = fg.make_jaxpr(f)(fnp.ones(3)).eqns
    assert sin.source.text == "y = fnp.sin(x)"
    assert mul.source.text == total.source.text == "return fnp.sum(y * y)"
    assert mul.source.code.co_name == "f"


def test_equations_of_a_library_call_name_the_users_line():
    eqns = fg.make_jaxpr(lambda x: fnp.mean(x, axis=0))(fnp.ones((2, 3))).eqns
    assert {e.source.file for e in eqns} == {__file__}


def test_equations_inside_nested_programs_keep_their_lines():
    def body(c, x):
        return c * x, None

    closed = fg.make_jaxpr(lambda xs: fg.lax.scan(body, 1.0, xs)[0])(fnp.ones(3))
    (mul,) = closed.eqns[0].params["jaxpr"].eqns
    assert mul.source.text == "return c * x, None"


def test_equations_keep_lines_through_vmap_and_jit():
    f = fg.jit(lambda x: fnp.cos(x) * 2.0)
    closed = fg.make_jaxpr(fg.vmap(f))(fnp.ones(3))
    inner = closed.eqns[0].params["jaxpr"].eqns
    assert {e.source.file for e in inner} == {__file__}


class Box:
    pass


kept = []


def test_variable_holding_finds_names_elements_and_attributes():
    value, other = object(), object()
    assert source.variable_holding(value) == "value"
    box = Box()
    box.held = third = object()
    del third
    assert source.variable_holding(box.held) == "box.held"
    table = {"w": object()}
    assert source.variable_holding(table["w"]) == "table['w']"
    pair = [1, object()]
    assert source.variable_holding(pair[1]) == "pair[1]"
    kept.append(object())
    assert source.variable_holding(kept[0]) == "kept[0]"
    assert source.variable_holding(object()) is None
    assert other is not value


def test_a_line_of_a_notebook_cell_is_called_that():
    code = compile("\n\nx = 1", "/tmp/ipykernel_123/456.py", "exec")
    place = source.Source(code, len(code.co_code) - 2)
    assert str(place) == "line 3 of a cell (<module>)"
