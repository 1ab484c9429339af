// What a program prints, gathered for a moment: a loop that prints a line at a
// time costs a message per moment, not one per line.

const BYTES_MAX = 32 * 1024;
const MOMENT_MS = 20;

export class Output {
  #publish;
  #name = "stdout";
  #text = "";
  #sent = 0;
  #scheduled = false;

  /** `publish` gets a stream and text. */
  constructor(publish) {
    this.#publish = publish;
  }

  write(name, text) {
    if (name !== this.#name) {
      this.flush();
      this.#name = name;
    }
    this.#text += text;
    const late = performance.now() - this.#sent > MOMENT_MS;
    if (late || this.#text.length > BYTES_MAX) {
      this.flush();
    } else if (!this.#scheduled) {
      this.#scheduled = true;
      setTimeout(() => {
        this.#scheduled = false;
        this.flush();
      }, MOMENT_MS).unref();
    }
  }

  flush() {
    if (this.#text !== "") {
      const text = this.#text;
      this.#text = "";
      this.#publish(this.#name, text);
    }
    this.#sent = performance.now();
  }
}
