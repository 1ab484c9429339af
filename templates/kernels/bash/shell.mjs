// A shell that is told what to run and says when it is done.
//
// It reads commands from a pipe as an interactive shell, so that an interrupt
// ends the cell and not the shell. Behind each cell it writes a mark to both of
// its streams, through descriptors of its own: everything before the marks is
// the cell's.

import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout } from "node:timers/promises";

/** No text of a program has it, as good as never. */
const SIGN = "\u001e";

/** What makes it quiet: no prompts, no history, no expansion of `!`. */
const BEGIN = "PS1= PS2= PROMPT_COMMAND=; set +H +o history; unset HISTFILE; exec 8>&1 9>&2";

/** How long its streams may stay open after it: what it has left running holds them. */
const LAST_WORDS_MS = 100;

export class Shell {
  #process;
  #streams;
  #directory = mkdtempSync(path.join(tmpdir(), "atoll-bash-"));
  /** Told when the shell is gone. */
  #gone;
  #begun;

  /** `print` gets the name of a stream and text. */
  constructor(print) {
    this.#process = spawn("bash", ["--noprofile", "--norc", "--noediting", "-i"], {
      detached: true,
      env: { ...process.env, PS1: "", PS2: "" },
      stdio: ["pipe", "pipe", "pipe"],
    });
    this.#streams = {
      stdout: new Marked(this.#process.stdout, (text) => print("stdout", text)),
      stderr: new Marked(this.#process.stderr, (text) => print("stderr", text)),
    };
    this.#gone = new Promise((resolve) => {
      const gone = (what) => {
        rmSync(this.#directory, { recursive: true, force: true });
        resolve({ gone: what });
      };
      // What it has printed last may still be on its way.
      const heard = Promise.all(
        [this.#process.stdout, this.#process.stderr].map((stream) => once(stream, "close")),
      );
      this.#process.once("exit", async (status, signal) => {
        await Promise.race([heard, setTimeout(LAST_WORDS_MS)]);
        gone(signal ?? `status ${status}`);
      });
      this.#process.once("error", (error) => gone(error.message));
    });
    this.#process.stdin.on("error", () => {
      // It is gone, and that is told.
    });
    this.#begun = this.#quietly(BEGIN);
  }

  /** `{ status }` of the last command of a cell, or `{ gone }` when the shell has ended. */
  async run(code) {
    await this.#begun;
    const cell = path.join(this.#directory, "cell");
    try {
      writeFileSync(cell, `${code}\n`, { mode: 0o600 });
    } catch {
      return this.#gone;
    }
    return this.#marked(`source '${cell}' < /dev/null`);
  }

  /** Ends the cell that runs, with everything that it has started in the foreground. */
  interrupt() {
    this.#signal("SIGINT");
  }

  kill() {
    this.#signal("SIGKILL");
    rmSync(this.#directory, { recursive: true, force: true });
  }

  #signal(signal) {
    try {
      process.kill(-this.#process.pid, signal);
    } catch {
      // It is gone.
    }
  }

  /** What an interactive shell says at its start is nobody's output. */
  async #quietly(command) {
    Object.values(this.#streams).forEach((stream) => stream.mute(true));
    await this.#marked(command);
    Object.values(this.#streams).forEach((stream) => stream.mute(false));
  }

  async #marked(command) {
    const token = randomUUID();
    const marks = Promise.all(Object.values(this.#streams).map((stream) => stream.mark(token)));
    const mark = `printf '\\036%s %s\\036' ${token} "$?"`;
    // The second line is read after an interrupt, too.
    this.#process.stdin.write(`${command}\n{ ${mark} >&8 || ${mark}; printf '\\036%s\\036' ${token} >&9; } 2> /dev/null\n`);
    const status = marks.then(([text]) => ({ status: Number(text) }));
    return Promise.race([status, this.#gone]);
  }
}

/** A stream of text in which marks are found and taken out. */
class Marked {
  #publish;
  #rest = "";
  #wanted = null;
  #muted = false;

  constructor(stream, publish) {
    this.#publish = publish;
    stream.setEncoding("utf8");
    stream.on("data", (text) => this.#take(text));
    stream.on("error", () => {});
  }

  mute(muted) {
    this.#muted = muted;
  }

  /** Resolves with what stands behind the token in its mark. */
  mark(token) {
    return new Promise((resolve) => {
      this.#wanted = { token, resolve };
    });
  }

  #take(text) {
    this.#rest += text;
    for (;;) {
      const start = this.#rest.indexOf(SIGN);
      if (start < 0) {
        break;
      }
      this.#tell(this.#rest.slice(0, start));
      this.#rest = this.#rest.slice(start);
      const { token, resolve } = this.#wanted ?? { token: "" };
      const isMark = token !== "" && `${SIGN}${token}`.startsWith(this.#rest.slice(0, token.length + 1));
      const end = this.#rest.indexOf(SIGN, 1);
      if (isMark && end < 0) {
        return;
      }
      if (isMark && this.#rest.startsWith(`${SIGN}${token}`)) {
        const told = this.#rest.slice(token.length + 1, end).trim();
        this.#rest = this.#rest.slice(end + 1);
        this.#wanted = null;
        resolve(told);
        continue;
      }
      // A program has printed the sign.
      this.#tell(SIGN);
      this.#rest = this.#rest.slice(1);
    }
    this.#tell(this.#rest);
    this.#rest = "";
  }

  #tell(text) {
    if (text !== "" && !this.#muted) {
      this.#publish(text);
    }
  }
}
