/* What a chat can be told beside its messages: one table, from which the form is made and the request is read. */

const number = (name, label, low, high, step = "any") => ({name, label, kind: "number", low, high, step});
const integer = (name, label, low, high) => number(name, label, low, high, 1);

const GROUPS = [
  {title: "", fields: [
    {name: "system", label: "System prompt", kind: "text", rows: 4, hint: "none"},
    [number("temperature", "Temperature", 0, 2), integer("max_completion_tokens", "Longest answer", 1)],
    [number("top_p", "Top p", 0, 1), integer("top_k", "Top k", -1)],
    [number("min_p", "Min p", 0, 1), integer("seed", "Seed")],
    {name: "stop", label: "Stop strings, one a line", kind: "lines", rows: 2, hint: "none"},
  ]},
  {title: "More sampling", fields: [
    [number("typical_p", "Typical p", 0, 1), integer("min_tokens", "Shortest answer", 0)],
    [number("repetition_penalty", "Repetition penalty", 0), integer("repeat_last_n", "Penalties look back", -1)],
    [number("frequency_penalty", "Frequency penalty", -2, 2), number("presence_penalty", "Presence penalty", -2, 2)],
    [number("dry_multiplier", "DRY multiplier", 0), number("dry_base", "DRY base", 1)],
    [integer("dry_allowed_length", "DRY allowed length", 0), integer("dry_penalty_last_n", "DRY looks back", -1)],
    [number("xtc_probability", "XTC probability", 0, 1), number("xtc_threshold", "XTC threshold", 0, 1)],
    [integer("mirostat", "Mirostat", 0, 2), number("mirostat_tau", "Mirostat tau", 0)],
    [number("mirostat_eta", "Mirostat eta", 0, 1), integer("priority", "Priority")],
    {name: "logit_bias", label: "Logit bias", kind: "json", rows: 2, hint: '{"1234": -5}'},
  ]},
  {title: "Thinking", fields: [
    [{name: "enable_thinking", label: "Thinking", kind: "choice", options: ["true", "false"]},
     {name: "reasoning_effort", label: "Effort", kind: "choice", options: ["minimal", "low", "medium", "high"]}],
    number("think_budget", "Share of the answer for thinking", 0, 1),
  ]},
  {title: "Tools and formats", fields: [
    {name: "tools", label: "Tools", kind: "json", rows: 5, hint: '[{"type": "function", "function": {"name": …}}]'},
    {name: "tool_choice", label: "Tool choice", kind: "choice", options: ["auto", "none", "required"]},
    {name: "schema", label: "JSON schema of the answer", kind: "json", rows: 5, hint: '{"type": "object", "properties": {…}}'},
  ]},
];
const FIELDS = GROUPS.flatMap(group => group.fields.flat());
const FIELD_NAMES = new Set([...FIELDS.map(field => field.name), "model"]);

const READ = {
  number: value => Number(value),
  text: value => value,
  lines: value => value.split("\n").filter(line => line !== ""),
  choice: value => (value === "true" ? true : value === "false" ? false : value),
  json: value => JSON.parse(value),
};

/** The fields of a request that a chat's settings stand for. Throws an Error that names the field. */
function requestFields(settings) {
  const out = {};
  for (const field of FIELDS) {
    const value = settings[field.name];
    if (value === undefined || value.trim() === "") continue;
    try {
      out[field.name] = READ[field.kind](value);
    } catch (error) {
      throw new Error(`${field.label} is not JSON: ${error.message}`, {cause: error});
    }
  }
  const {system, schema, ...fields} = out;
  if (schema !== undefined) fields.response_format = {type: "json_schema", json_schema: {name: "answer", schema}};
  return fields;
}

/** The form. `changed(name, value)` is called with what was typed. */
function settingsForm(changed) {
  const control = field => {
    const common = {id: "set-" + field.name, name: field.name,
                    onchange: event => changed(field.name, event.target.value), oninput: check};
    if (field.kind === "number")
      return el("input", {...common, type: "number", min: field.low, max: field.high, step: field.step, placeholder: "default"});
    if (field.kind === "choice")
      return el("select", common, el("option", {value: ""}, "default"), ...field.options.map(each => el("option", {}, each)));
    return el("textarea", {...common, rows: field.rows, placeholder: field.hint, spellcheck: field.kind === "text" ? null : "false",
                           class: field.kind === "json" ? "mono" : null});
  };
  const labelled = field => el("label", {}, el("span", {}, field.label), control(field),
    field.kind === "json" && el("small", {role: "alert"}));
  const rows = group => group.fields.map(each => (Array.isArray(each) ? el("div", {class: "pair"}, ...each.map(labelled)) : labelled(each)));
  return GROUPS.map(group => (group.title
    ? el("details", {}, el("summary", {}, group.title), ...rows(group)) : el("div", {}, ...rows(group))));
}

/** JSON fields say at once whether they are. */
function check(event) {
  const area = event.target, note = area.parentElement.querySelector("small");
  if (!note) return;
  let wrong = "";
  try {
    if (area.value.trim()) JSON.parse(area.value);
  } catch (error) {
    wrong = error.message;
  }
  area.classList.toggle("wrong", wrong !== "");
  note.textContent = wrong;
}

/** Shows a chat's settings, and the served model's own as what holds where nothing is set. */
function fillSettings(settings, model) {
  for (const field of FIELDS) {
    const control = $("set-" + field.name), standard = model?.sampling_defaults?.[field.name];
    control.value = settings[field.name] ?? "";
    if (field.kind === "number") control.placeholder = standard === undefined ? "default" : String(Number(standard.toFixed(4)));
    check({target: control});
  }
}
