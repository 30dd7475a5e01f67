// Text by the library that native_gpt.py makes, as gpt.c has it; one character after the other.

/** gpt: the loaded function; seed: what is drawn with; length: of the text. */
export function* characters(gpt, seed, length) {
  const cacheOf = gpt.inputs.find((each) => each.name === "cache");
  const context = cacheOf.dims[2], text = ["\n".codePointAt(0)];
  let cache = new Float32Array(cacheOf.dims.reduce((n, m) => n * m, 1));
  for (let begin = 0, fed = 0; text.length <= length; ) {
    // When the cache is full, it goes on from the second half of what it has seen.
    if (fed - begin === context) fed = begin = text.length - Math.floor(context / 2);
    const given = { cache, character: text[fed], position: fed - begin, seed: seed + fed };
    const { output0, output1 } = gpt.run(given);
    cache = output0;
    if (++fed === text.length) {
      text.push(output1[0]);
      yield String.fromCodePoint(output1[0]);
    }
  }
}
