// The models that the server has, and a form to try each. What the server says is text, never HTML.
"use strict";

const at = (id) => document.getElementById(id);

function made(kind, text, ...children) {
  const element = document.createElement(kind);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

async function ask(path, body) {
  const token = at("token").value;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const method = body === undefined ? "GET" : "POST";
  const answer = await fetch(path, { method, headers, body });
  if (answer.ok) return answer;
  const said = await answer.text();
  let error = said;
  try { error = JSON.parse(said).error; } catch { /* it is no JSON, and told as it is */ }
  throw new Error(`${answer.status}: ${error}`);
}

// Zeros of a shape, as nested lists; one element where any number is allowed.
function zeros(shape, kind) {
  if (!shape.length) return kind === "BOOL" ? false : 0;
  return Array.from({ length: Math.abs(shape[0]) }, () => zeros(shape.slice(1), kind));
}

function shapeOf(value) {
  return Array.isArray(value) ? [value.length, ...(value.length ? shapeOf(value[0]) : [])] : [];
}

function tensors(title, specs) {
  const rows = specs.map((s) =>
    made("tr", "", made("td", title), made("td", s.name), made("td", s.datatype),
      made("td", `[${s.shape}]`)));
  return rows;
}

async function infer(path, fields) {
  const inputs = fields.map(([spec, field]) => {
    const value = JSON.parse(field.value);
    return { name: spec.name, datatype: spec.datatype, shape: shapeOf(value), data: value };
  });
  const told = await (await ask(`${path}/infer`, JSON.stringify({ inputs }))).json();
  return told.outputs.map((o) => `${o.name} ${o.datatype} [${o.shape}]\n${JSON.stringify(o.data)}`)
    .join("\n");
}

async function generate(path, fields, shown) {
  const [text, length, heat] = fields.map(([, field]) => field.value);
  const parameters = { max_tokens: Number(length), temperature: Number(heat) };
  const body = JSON.stringify({ text_input: text, parameters });
  const reader = (await ask(`${path}/generate_stream`, body)).body
    .pipeThrough(new TextDecoderStream()).getReader();
  let all = text, rest = "";
  for (let part; !(part = await reader.read()).done;) {
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const told = JSON.parse(event.replace("data: ", ""));
      if (told.error) throw new Error(told.error);
      shown.textContent = all += told.text_output;
    }
  }
  return all;
}

function form(model, path) {
  const generates = model.platform === "funcgrad_generation";
  const wanted = generates
    ? [["text_input", ""], ["max_tokens", "16"], ["temperature", "0"]]
    : model.inputs.map((s) => [s, JSON.stringify(zeros(s.shape, s.datatype))]);
  const fields = wanted.map(([spec, value]) => {
    const field = made("textarea");
    field.rows = generates ? 1 : 3;
    field.value = value;
    return [spec, field];
  });
  const shown = made("pre");
  const element = made("form", "",
    ...fields.map(([spec, field]) => made("label", spec.name ?? spec, field)),
    made("button", "Try"), shown);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    shown.textContent = "…";
    try {
      shown.textContent = await (generates ? generate : infer)(path, fields, shown);
    } catch (error) {
      shown.textContent = String(error.message);
    }
    await metrics();
  });
  return element;
}

async function metrics() {
  const text = await (await ask("metrics")).text();
  at("metrics").textContent = text.split("\n").filter((l) => l && !l.startsWith("#")).join("\n");
}

async function read() {
  at("trouble").textContent = "";
  try {
    const sections = [];
    for (const { name, version } of await (await ask("v2/repository/index", "")).json()) {
      const path = `v2/models/${encodeURIComponent(name)}/versions/${encodeURIComponent(version)}`;
      const model = await (await ask(path)).json();
      sections.push(made("section", "", made("h2", `${name}, version ${version}`),
        made("table", "", ...tensors("in", model.inputs), ...tensors("out", model.outputs)),
        form(model, path)));
    }
    at("models").replaceChildren(...sections);
    await metrics();
  } catch (error) {
    at("trouble").textContent = String(error.message);
  }
}

at("again").addEventListener("click", read);
read();
