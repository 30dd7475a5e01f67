"""Pictures of schedules."""

import xml.etree.ElementTree as ET

import pytest

from funcgrad.parallel.pipelines import Costs, interleaved, one_f_one_b, simulate, zb_v


@pytest.mark.parametrize("schedule", [one_f_one_b(3, 4), interleaved(2, 4), zb_v(2, 4)], ids=repr)
def test_each_action_has_a_box(schedule):
    page = simulate(schedule)._repr_html_()
    svg = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    boxes = svg.findall(".//{*}rect")
    assert len(boxes) == sum(map(len, schedule.rows))
    right = max(float(b.get("x")) + float(b.get("width")) for b in boxes)
    assert right <= float(svg.get("width"))
    titles = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert "F0 of stage 0: 0 to 1" in titles
    assert f"<b>{schedule.name}: 4 microbatches, idle / work" in page


def test_names_are_escaped():
    schedule = type(one_f_one_b(1, 1))("<b>", one_f_one_b(1, 1).rows)
    assert "&lt;b&gt;" in simulate(schedule)._repr_html_()


def test_text_of_times_that_are_no_whole_numbers():
    assert str(simulate(one_f_one_b(1, 1), Costs(forward=1.6))).startswith("rank 0: F0 F0 B0")
