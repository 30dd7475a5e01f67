"""Run all measurements: `python -m benchmarks`."""

from benchmarks import elementwise, gpt_step

for module in (elementwise, gpt_step):
    module.main()
