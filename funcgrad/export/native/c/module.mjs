// $name for JavaScript, in browsers and Node: a module without dependencies. Made by funcgrad.
//
//    $signature
//
//     import { load } from "./$name.mjs";
//     const f = await load();
//     const { output0 } = f.run({ x: [1, 2, 3] });

const WASM = "$name.wasm", WEIGHTS = $weights_url, SIZE = $size_name;
const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  float32: Float32Array, float64: Float64Array,
  // These are pairs of numbers, or the bits of numbers.
  complex64: Float32Array, complex128: Float64Array, float16: Uint16Array, bfloat16: Uint16Array,
};

/** The function, loaded.
 *
 *  wasm, weights: the files' content or where they are, by default beside this module; a library
 *  with its weights inside has no file of them. */
export async function load({ wasm = beside(WASM), weights = WEIGHTS && beside(WEIGHTS) } = {}) {
  const [code, data] = await Promise.all([content(wasm), weights && content(weights)]);
  const { instance } = await WebAssembly.instantiate(code);
  return new Loaded(instance.exports, data);
}

const beside = (file) => new URL(file, import.meta.url);

async function content(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  if (String(source).startsWith("file:")) {
    const { readFile } = await import("node:fs/promises");
    return readFile(new URL(source));
  }
  const response = await fetch(source);
  if (!response.ok) throw new Error("$name: " + source + ": " + response.status);
  return response.arrayBuffer();
}

/** What went wrong; status: what the C function gave. */
export class ${name}Error extends Error {
  constructor(message, status = 1) {
    super("$name: " + message);
    this.status = status;
  }
}

class Loaded {
  #c; #end; #context; #inputs; #outputs; #ins; #outs; #arena; #start; #rows = -1;

  constructor(c, weights) {
    this.#c = c;
    this.#end = c.__heap_base.value;
    c._initialize?.();
    this.#inputs = this.#described(c.${name}_input);
    this.#outputs = this.#described(c.${name}_output);
    this.#context = this.#block(256);
    const bytes = weights ? new Uint8Array(weights.buffer ?? weights, weights.byteOffset ?? 0,
                                           weights.byteLength) : new Uint8Array(0);
    const at = weights ? this.#block(bytes.length) : 0;
    new Uint8Array(c.memory.buffer).set(bytes, at);
    this.#check(c.${name}_init(this.#context, 256, at, bytes.length));
    this.#arena = this.#block(c.${name}_arena_bytes());
    this.#start = this.#end;
    if (SIZE === null) this.#allocate(1);
  }

  /** Names, dtypes and dimensions of what goes in and comes out. */
  get inputs() { return this.#inputs.map(shown); }
  get outputs() { return this.#outputs.map(shown); }

  /** The outputs, as new typed arrays by name, of inputs by name: numbers, arrays of numbers, or
   *  typed arrays of the input's dtype. Where a first dimension is -1, their lengths say how many
   *  rows there are. */
  run(inputs = {}) {
    const c = this.#c;
    for (const name of Object.keys(inputs))
      if (!this.#inputs.some((t) => t.name === name))
        throw new ${name}Error("there is no input " + name);
    const given = this.#inputs.map((t) => values(t, inputs[t.name]));
    this.#resize(given);
    this.#inputs.forEach((t, i) => {
      if (given[i].length !== t.length)
        throw new ${name}Error(t.name + " has " + t.length + " numbers, got " + given[i].length);
      new t.type(c.memory.buffer, t.at, t.length).set(given[i]);
    });
    this.#check(c.${name}_run(this.#context, this.#ins, this.#outs, this.#arena,
                              c.${name}_arena_bytes()));
    const found = (t) => new t.type(c.memory.buffer, t.at, t.length).slice();
    return Object.fromEntries(this.#outputs.map((t) => [t.name, found(t)]));
  }

  /** Memory for as many rows as the first input with rows has. */
  #resize(given) {
    const i = this.#inputs.findIndex((t) => t.dims[0] === -1);
    if (i < 0) return;
    const rows = given[i].length / this.#inputs[i].each;
    if (!Number.isInteger(rows))
      throw new ${name}Error(this.#inputs[i].name + " has rows of " + this.#inputs[i].each +
                             " numbers, got " + given[i].length);
    if (rows === this.#rows) return;
    const name = this.#block(SIZE.length + 1);
    new Uint8Array(this.#c.memory.buffer).set([...new TextEncoder().encode(SIZE), 0], name);
    this.#check(this.#c.${name}_set_size(this.#context, name, BigInt(rows)));
    this.#allocate(rows);
  }

  #allocate(rows) {
    this.#rows = rows;
    this.#end = this.#start;
    this.#ins = this.#places(this.#inputs);
    this.#outs = this.#places(this.#outputs);
  }

  #check(status) {
    if (status === 0) return;
    const text = this.#text(this.#c.${name}_message(this.#context));
    throw new ${name}Error(text.replace("$name: ", ""), status);
  }

  #described(tensor) {
    const found = [];
    for (let i = 0, at; (at = tensor(i)); i++) {
      const [name, dtype, rank, dims, bytes] = new Uint32Array(this.#c.memory.buffer, at, 5);
      const type = ARRAYS[this.#text(dtype)] ?? Uint8Array;
      found.push({
        name: this.#text(name), dtype: this.#text(dtype), type,
        dims: [...new BigInt64Array(this.#c.memory.buffer, dims, rank)].map(Number),
        each: bytes / type.BYTES_PER_ELEMENT,
      });
    }
    return found;
  }

  #text(at) {
    const bytes = new Uint8Array(this.#c.memory.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  /** Memory for arrays, and an array of its addresses. */
  #places(tensors) {
    for (const t of tensors) {
      t.length = t.dims[0] === -1 ? t.each * this.#rows : t.each;
      t.at = this.#block(t.length * t.type.BYTES_PER_ELEMENT);
    }
    const at = this.#block(4 * tensors.length);
    new Uint32Array(this.#c.memory.buffer, at, tensors.length).set(tensors.map((t) => t.at));
    return at;
  }

  #block(bytes) {
    const at = Math.ceil(this.#end / 64) * 64;
    this.#end = at + bytes + 64;
    const missing = this.#end - this.#c.memory.buffer.byteLength;
    if (missing > 0) this.#c.memory.grow(Math.ceil(missing / 65536));
    return at;
  }
}

const shown = ({ name, dtype, dims }) => ({ name, dtype, dims: [...dims] });

function values(t, given) {
  if (given === undefined || (ArrayBuffer.isView(given) && !(given instanceof t.type)))
    throw new ${name}Error(t.name + " must be numbers of " + t.dtype + ", got " +
                           (given?.constructor.name ?? "nothing"));
  const all = typeof given === "object" && given !== null ? given : [given];
  // Integers of 64 bits may be given as plain numbers.
  return t.type === BigInt64Array || t.type === BigUint64Array ? Array.from(all, BigInt) : all;
}
