// Runs a library for WebAssembly on inputs from files and writes the outputs, as main.c does.
const fs = require("fs");
const [file, folder] = process.argv.slice(2);
const { exports: net } = new WebAssembly.Instance(new WebAssembly.Module(fs.readFileSync(file)));
const arenaBytes = Number(process.argv[4]);

let end = net.__heap_base.value;
function block(bytes) {
  const at = Math.ceil(end / 64) * 64;
  end = at + bytes + 64;
  const missing = end - net.memory.buffer.byteLength;
  if (missing > 0) net.memory.grow(Math.ceil(missing / 65536));
  return at;
}
const word = (at) => new DataView(net.memory.buffer).getUint32(at, true);
const tensor = (at) => ({ bytes: word(at + 16) });
const put = (at, words) => new Uint32Array(net.memory.buffer, at, words.length).set(words);

net._initialize();
const inputs = [], outputs = [];
for (let i = 0, t; (t = net.net_input(i)); i++) {
  const at = block(tensor(t).bytes);
  new Uint8Array(net.memory.buffer).set(fs.readFileSync(`${folder}/in${i}.bin`), at);
  inputs.push(at);
}
for (let i = 0, t; (t = net.net_output(i)); i++) {
  const { bytes } = tensor(t);
  outputs.push([block(bytes), bytes]);
}
const context = block(256), arena = block(arenaBytes);
const ins = block(4 * inputs.length), outs = block(4 * outputs.length);
put(ins, inputs);
put(outs, outputs.map(([at]) => at));
if (net.net_init(context, 256, 0, 0) || net.net_run(context, ins, outs, arena, arenaBytes)) {
  const message = new Uint8Array(net.memory.buffer, net.net_message(context), 192);
  throw new Error(Buffer.from(message).toString());
}
outputs.forEach(([at, bytes], i) =>
  fs.writeFileSync(`${folder}/out0_${i}.bin`, new Uint8Array(net.memory.buffer, at, bytes)));
