// What a program prints, as messages: the first lines of a moment at once, so
// that they are seen although the program goes on to compute; after that
// gathered, so that a loop that prints lines does not cost a message for each.

const BYTES_MAX = 32 * 1024;
const MOMENT_MS = 20;
const AT_ONCE_MAX = 16;

export class Output {
  #publish;
  #name = "stdout";
  #text = "";
  #moment = 0;
  #messages = 0;
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
    const now = performance.now();
    if (now - this.#moment > MOMENT_MS) {
      this.#moment = now;
      this.#messages = 0;
    }
    if (this.#messages < AT_ONCE_MAX || this.#text.length > BYTES_MAX) {
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
      this.#messages += 1;
      this.#publish(this.#name, text);
    }
  }
}
