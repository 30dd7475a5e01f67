// Runs a library's JavaScript module: prints what it gives and what it says of faults, as JSON.
import { readFile } from "node:fs/promises";

const [module, folder] = process.argv.slice(2);
const { load, netError } = await import(module);
const net = await load();
const { inputs, outputs } = net;
const x = Float32Array.from({ length: 12 }, (_, i) => i / 4 - 1);
const given = { x, n: [1n, 2n, 3n] };
const first = net.run(given);
const second = net.run({ n: [1, 2, 3], x: first.output0 });

const faults = [];
async function failing(action) {
  try {
    await action();
  } catch (error) {
    faults.push([error instanceof netError, error.status, error.message]);
  }
}
const weights = await readFile(`${folder}/net.safetensors`);
await failing(() => net.run({ ...given, y: 1 }));
await failing(() => net.run({ x }));
await failing(() => net.run({ ...given, x: new Float64Array(12) }));
await failing(() => net.run({ ...given, x: [1, 2] }));
await failing(() => load({ weights: weights.subarray(0, 64) }));
await failing(() => load({ weights: new Uint8Array(weights.length) }));

const plain = (found) => Object.fromEntries(
  Object.entries(found).map(([name, array]) => [name, [...array].map(Number)]));
console.log(JSON.stringify({ inputs, outputs, first: plain(first), second: plain(second), faults,
                             kinds: Object.values(first).map((a) => a.constructor.name) }));
