// From what people write in a cell to what V8's REPL takes: no types, and imports that work there.
"use strict";

const fs = require("node:fs");
const module_ = require("node:module");
const path = require("node:path");
const url = require("node:url");

globalThis[Symbol.for("belljar.import")] = (specifier, options) => {
  // As if the cell were a file in the working directory.
  const text = String(specifier);
  if (/^\.{0,2}\//.test(text)) return import(url.pathToFileURL(path.resolve(text)).href, options);
  if (module_.isBuiltin(text) || /^[a-z]+:/.test(text)) return import(text, options);
  return import(resolvePackage(text), options);
};

function resolvePackage(text) {
  const here = path.join(process.cwd(), "cell.js");
  try {
    return url.pathToFileURL(module_.createRequire(here).resolve(text)).href;
  } catch (error) {
    if (error.code !== "ERR_PACKAGE_PATH_NOT_EXPORTED") throw error;
    // A package for import alone: what its manifest names.
    const name = text.split("/").slice(0, text.startsWith("@") ? 2 : 1).join("/");
    for (const folder of module_.createRequire(here).resolve.paths(name) ?? []) {
      const manifest = path.join(folder, name, "package.json");
      if (!fs.existsSync(manifest)) continue;
      const { exports, module: entry, main } = JSON.parse(fs.readFileSync(manifest, "utf8"));
      const chosen = pick(text === name ? exports?.["."] ?? exports : exports?.["." + text.slice(name.length)]) ?? entry ?? main;
      if (typeof chosen === "string") return url.pathToFileURL(path.join(folder, name, chosen)).href;
    }
    throw error;
  }
}

function pick(target) {
  if (typeof target !== "object" || target === null || Array.isArray(target)) return target;
  for (const [condition, value] of Object.entries(target)) {
    if (["node", "import", "module", "default"].includes(condition)) return pick(value);
  }
  return undefined;
}

function transform(code, language) {
  if (language === "typescript") code = module_.stripTypeScriptTypes(code, { mode: "transform" });
  return /\b(import|export)\b/.test(code) ? rewriteModules(code) : code;
}

const TOKEN = /\/\/[^\n]*|\/\*[^]*?\*\/|'(?:\\[^]|[^'\\\n])*'|"(?:\\[^]|[^"\\\n])*"|`|[{}()[\]]|[A-Za-z_$][\w$]*|\d[\w.]*|\/|\s+|[^]/g;
const IMPORT = /import\s*(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)|\{([^}]*)\})?\s*(?:from\s*)?(["'])((?:\\.|(?!\4).)*)\4\s*(?:with\s*(\{[^}]*\}))?[ \t]*;?/y;

function rewriteModules(code) {
  // Import statements become `await import`, dynamic imports go through ours, `export` falls away. Strings and comments stay as they are.
  let output = "";
  const depth = []; // open brackets, and "`" for a template that we are inside an expression of
  let before = ""; // the last thing that was neither space nor comment
  for (let at = 0; at < code.length; ) {
    TOKEN.lastIndex = at;
    const token = TOKEN.exec(code)[0];
    let end = at + token.length;
    let text = token;
    if (token === "`" || (token === "}" && depth.at(-1) === "`")) {
      if (token === "}") depth.pop();
      end = endOfTemplate(code, end);
      if (code[end - 1] === "{") depth.push("`");
      text = code.slice(at, end);
    } else if (token === "/" && !/[\w$)\]}]$/.test(before)) {
      end = endOfRegExp(code, end);
      text = code.slice(at, end);
    } else if ("{([".includes(token)) depth.push(token);
    else if ("})]".includes(token)) depth.pop();
    else if (token === "import" && before !== ".") {
      IMPORT.lastIndex = at;
      const found = depth.length ? null : IMPORT.exec(code);
      if (found) [text, end] = [importStatement(found), at + found[0].length];
      else if (/^\s*\(/.test(code.slice(end))) text = 'globalThis[Symbol.for("belljar.import")]';
    } else if (token === "export" && !depth.length && before !== ".") {
      const list = /\s*(default\b|\{[^}]*\}\s*;?)/y;
      list.lastIndex = end;
      const found = list.exec(code);
      text = "";
      if (found) [text, end] = [found[1] === "default" && !/^\s*(function|class|async)\b/.test(code.slice(end + found[0].length)) ? ";" : "", end + found[0].length];
    }
    output += text;
    if (!/^(\s|\/\/|\/\*)/.test(token)) before = token;
    at = end;
  }
  return output;
}

function endOfTemplate(code, at) {
  // Behind the closing "`", or behind the "${" of an expression in it.
  for (; at < code.length; at++) {
    if (code[at] === "\\") at++;
    else if (code[at] === "`") return at + 1;
    else if (code[at] === "$" && code[at + 1] === "{") return at + 2;
  }
  return code.length;
}

function endOfRegExp(code, at) {
  for (let inClass = false; at < code.length && code[at] !== "\n"; at++) {
    if (code[at] === "\\") at++;
    else if (code[at] === "[") inClass = true;
    else if (code[at] === "]") inClass = false;
    else if (code[at] === "/" && !inClass) return at + 1;
  }
  return at;
}

function importStatement([, main, all, names, quote, from, attributes]) {
  const options = attributes ? `, { with: ${attributes} }` : "";
  const loaded = `await globalThis[Symbol.for("belljar.import")](${quote}${from}${quote}${options})`;
  const wanted = [];
  if (main) wanted.push(`default: ${main}`);
  for (const name of (names ?? "").split(",").map((text) => text.trim()).filter(Boolean)) wanted.push(name.replace(/\s+as\s+/, ": "));
  if (all) return `const ${all} = ${loaded};` + (main ? ` const ${main} = ${all}.default;` : "");
  return wanted.length ? `const { ${wanted.join(", ")} } = ${loaded};` : `${loaded};`;
}

module.exports = { transform };
