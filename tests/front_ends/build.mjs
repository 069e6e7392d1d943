// Compiles the entry file that is named, with the components it imports, into app.js: esbuild, which knows JSX, and for
// .vue files the compiler that comes with Vue.
import { readFile } from "node:fs/promises";
import { basename } from "node:path";
import { build } from "esbuild";
import { compileScript, parse } from "vue/compiler-sfc";

const vueFiles = {
  name: "vue files",
  setup({ onLoad }) {
    onLoad({ filter: /\.vue$/ }, async ({ path }) => {
      const filename = basename(path);
      const { descriptor, errors } = parse(await readFile(path, "utf8"), { filename });
      if (errors.length) return { errors: errors.map(({ message }) => ({ text: message })) };
      return { contents: compileScript(descriptor, { id: filename, inlineTemplate: true }).content, loader: "js" };
    });
  },
};

await build({
  entryPoints: [process.argv[2]],
  outfile: "app.js",
  bundle: true,
  format: "esm",
  jsx: "automatic",
  logLevel: "warning",
  define: {
    "process.env.NODE_ENV": '"development"',
    __VUE_OPTIONS_API__: "true",
    __VUE_PROD_DEVTOOLS__: "false",
    __VUE_PROD_HYDRATION_MISMATCH_DETAILS__: "false",
  },
  plugins: [vueFiles],
});
