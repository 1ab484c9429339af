// What kernels of every language do with requests: counting, publishing, answering.

import { readFileSync } from "node:fs";

import { Wire } from "./wire.mjs";

/** One connection, for the life of this process. Its file is the first argument. */
export class Kernel {
  #wire = new Wire(JSON.parse(readFileSync(process.argv[2], "utf8")));
  #executions = 0;

  /** Publishes what a cell has printed. */
  print(name, text) {
    this.#wire.publish("stream", { name, text });
  }

  /** Publishes what a cell shows. */
  show(bundle) {
    this.#wire.publish("display_data", { data: bundle, metadata: {}, transient: {} });
  }

  /**
   * Serves until it is told to stop. `language` is what `kernel_info` says of
   * it, `execute(code)` gives `{ result }`, a MIME bundle or nothing, or
   * `{ error }` with `name`, `value` and `traceback`; when it is done, all that
   * was printed has been published. `interrupt()` ends what runs.
   */
  async serve({ language, execute, interrupt }) {
    process.on("SIGINT", interrupt);
    const answers = {
      kernel_info_request: () => ({
        status: "ok",
        protocol_version: "5.3",
        implementation: `atoll-${language.name}`,
        implementation_version: "1.0.0",
        language_info: language,
        banner: `${language.name} ${language.version}`,
        help_links: [],
      }),
      execute_request: (content) => this.#execute(content, execute),
      is_complete_request: () => ({ status: "unknown" }),
      complete_request: ({ cursor_pos: position }) => ({
        status: "ok",
        matches: [],
        cursor_start: position,
        cursor_end: position,
        metadata: {},
      }),
      inspect_request: () => ({ status: "ok", found: false, data: {}, metadata: {} }),
      history_request: () => ({ status: "ok", history: [] }),
      comm_info_request: () => ({ status: "ok", comms: {} }),
      interrupt_request: () => {
        interrupt();
        return { status: "ok" };
      },
      shutdown_request: ({ restart }) => ({ status: "ok", restart }),
    };
    await this.#wire.serve(async ({ type, content }) => answers[type]?.(content));
  }

  async #execute({ code, silent = false, store_history: counted = true }, execute) {
    if (!silent && counted) {
      this.#executions += 1;
    }
    const number = this.#executions;
    if (!silent) {
      this.#wire.publish("execute_input", { code, execution_count: number });
    }
    const { result, error } = await execute(code);
    if (error) {
      const content = { ename: error.name, evalue: error.value, traceback: error.traceback };
      if (!silent) {
        this.#wire.publish("error", content);
      }
      return { status: "error", execution_count: number, ...content };
    }
    if (result && !silent) {
      this.#wire.publish("execute_result", { data: result, metadata: {}, execution_count: number });
    }
    return { status: "ok", execution_count: number, payload: [], user_expressions: {} };
  }
}
