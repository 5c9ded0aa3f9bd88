// The OpenAPI description as a page.

const description = await (await fetch("/openapi.json")).json();

function element(name, text, ...children) {
  const made = document.createElement(name);
  made.append(...(text === null ? [] : [text]), ...children);
  return made;
}

function resolved(schema) {
  if (Array.isArray(schema)) return schema.map(resolved);
  if (schema === null || typeof schema !== "object") return schema;
  if (schema.$ref) {
    const found = schema.$ref.slice(2).split("/").reduce((part, name) => part[name], description);
    return resolved(found);
  }
  return Object.fromEntries(Object.entries(schema).filter(([name]) => name !== "title").map(([name, part]) => [name, resolved(part)]));
}

for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const part = element("section", null, element("h3", null, element("code", `${method.toUpperCase()} ${path}`)));
    part.className = "panel operation";
    part.append(element("p", operation.description ?? operation.summary ?? ""));
    for (const parameter of operation.parameters ?? []) {
      const { description: told = "", ...schema } = resolved(parameter.schema);
      part.append(element("p", null, element("code", `${parameter.name} (${parameter.in})`), ` ${parameter.description ?? told} ${JSON.stringify(schema)}`));
    }
    for (const [kind, body] of Object.entries(operation.requestBody?.content ?? {})) {
      part.append(element("details", null, element("summary", `Body: ${kind}`), element("pre", JSON.stringify(resolved(body.schema), null, 1))));
    }
    document.getElementById("operations").append(part);
  }
}
