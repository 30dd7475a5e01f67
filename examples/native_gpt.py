"""The GPT that gpt.py trained as a C library, which programs in C, C++, Rust and a web page run.

    python examples/gpt.py && python examples/native_gpt.py && cd examples/out/native
    cc -O2 -I. ../../native/gpt.c libgpt.so -Wl,-rpath,. -o gpt && ./gpt 7 400
    c++ -std=c++17 -O2 -I. ../../native/gpt.cpp libgpt.so -Wl,-rpath,. -o gpt && ./gpt 7 400
    rustc -O ../../native/gpt.rs -L. -lgpt -C link-arg=-Wl,-rpath,. && ./gpt 7 400

    pip install ziglang && python examples/native_gpt.py --target wasm32
    python -m http.server -d examples/out/web        # and open localhost:8000

The function takes a character and gives the next one. It keeps what it has seen in a cache of keys
and values, which goes in and comes out. The same seed gives the same text, in each language.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import gpt
import serve_gpt

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, random, tree


def step_of(params, cfg: gpt.Config, alphabet: str):
    """The function, and types of its arguments.

    cache: float32 (layers, 2, context, heads, width of a head); character: its number in Unicode;
    position: how many characters the cache has; seed: what the next one is drawn with
    """
    letters = fnp.asarray([ord(each) for each in alphabet], "int32")

    def gpt_step(cache, character, position, seed):
        past = [{"k": layer[0, None], "v": layer[1, None]} for layer in cache]
        code = fnp.argmax(letters == character)
        logits, new = serve_gpt.decode(params, past, code[None], position[None], cfg)
        drawn = random.categorical(random.key(seed), logits[0] / 0.8)
        cache = fnp.stack([fnp.concatenate([layer["k"], layer["v"]]) for layer in new])
        return cache, letters[drawn]

    shape = (cfg.layers, 2, cfg.context, cfg.heads, cfg.width // cfg.heads)
    number = fg.ShapeDtypeStruct((), "int32")
    return gpt_step, (fg.ShapeDtypeStruct(shape, "float32"), number, number, number)


def save(folder, params, cfg: gpt.Config, alphabet: str, **options) -> export.CLibrary:
    """Write the library; options: as of `export.aot`."""
    step, types = step_of(tree.map(fnp.asarray, params), cfg, alphabet)
    return export.aot(export.export(fg.jit(step))(*types), folder, name="gpt", **options)


def save_web(folder: Path, params, cfg: gpt.Config, alphabet: str) -> export.CLibrary:
    """Write a web page that runs the model."""
    made = save(folder, params, cfg, alphabet, target="wasm32", weights="beside")
    for file in (Path(__file__).parent / "web").iterdir():
        shutil.copyfile(file, folder / file.name)
    return made


def main(arguments: list[str] | None = None) -> None:
    """Read the last checkpoint, write the library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("examples/out"))
    parser.add_argument("--target", default="host", help="see export.aot")
    args = parser.parse_args(arguments)
    params, cfg = serve_gpt.trained(args.out)
    model = params, cfg, gpt.load_text()[2]
    if args.target == "wasm32":
        made = save_web(args.out / "web", *model)
    else:
        made = save(args.out / "native", *model, target=args.target)
    print(f"wrote {made.library}, {made.library.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
