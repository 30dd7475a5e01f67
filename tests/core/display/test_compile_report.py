from funcgrad.core.display.compile_report import CompileReport, CompileStage

REPORT = CompileReport("f<1>", (CompileStage("trace", 0.0012, "3 operations"),
                                CompileStage("kernels", 1.5, "")))  # fmt: skip


def test_table():
    assert repr(REPORT).splitlines() == [
        "compilation of f<1>: 1,501.2 ms",
        "  trace            1.2 ms  3 operations",
        "  kernels      1,500.0 ms",
    ]
    assert REPORT.seconds == 1.5012


def test_html():
    page = REPORT._repr_html_()
    assert "f&lt;1&gt;: 1,501.2 ms" in page
    assert "1.2 ms 3 operations" in page
