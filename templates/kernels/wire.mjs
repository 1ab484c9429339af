// Jupyter's messages over ZeroMQ: five sockets, signed frames, one request at a
// time on the shell channel.

import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";

import { Publisher, Reply, Router } from "zeromq";

const DELIMITER = "<IDS|MSG>";
const VERSION = "5.3";

export class Wire {
  #connection;
  #session = randomUUID();
  // Nothing is dropped, and nothing waits: a cell that keeps the thread busy
  // still has its output on the way.
  #publications = new Publisher({ sendHighWaterMark: 0, sendTimeout: 0, linger: 1000 });
  #shell = new Router({ sendHighWaterMark: 0, sendTimeout: 0, linger: 1000 });
  #control = new Router({ sendHighWaterMark: 0, sendTimeout: 0, linger: 1000 });
  #input = new Router({ linger: 0 });
  #heartbeat = new Reply({ linger: 0 });
  /** Header of the request whose output this is. */
  #parent = {};

  constructor(connection) {
    this.#connection = connection;
  }

  /** Answers requests with what `answer` gives, until one of them is to shut down. */
  async serve(answer) {
    const address = (port) => {
      const { transport, ip } = this.#connection;
      return transport === "ipc" ? `ipc://${ip}-${port}` : `tcp://${ip}:${port}`;
    };
    await this.#publications.bind(address(this.#connection.iopub_port));
    await this.#input.bind(address(this.#connection.stdin_port));
    await this.#heartbeat.bind(address(this.#connection.hb_port));
    await this.#control.bind(address(this.#connection.control_port));
    await this.#shell.bind(address(this.#connection.shell_port));
    this.publish("status", { execution_state: "starting" });
    this.#echo();
    await Promise.race([
      this.#receive(this.#shell, answer, (header) => {
        this.#parent = header;
      }),
      this.#receive(this.#control, answer, () => {}),
    ]);
    for (const socket of [this.#publications, this.#shell, this.#control, this.#input, this.#heartbeat]) {
      socket.close();
    }
  }

  publish(type, content, parent = this.#parent) {
    this.#send(this.#publications, [type], type, content, parent);
  }

  async #echo() {
    for await (const frames of this.#heartbeat) {
      await this.#heartbeat.send(frames);
    }
  }

  async #receive(socket, answer, begun) {
    for await (const frames of socket) {
      const request = this.#read(frames);
      if (request === undefined) {
        continue;
      }
      const { peers, header, content } = request;
      begun(header);
      this.publish("status", { execution_state: "busy" }, header);
      const reply = await answer({ type: header.msg_type, content });
      if (reply !== undefined) {
        this.#send(socket, peers, header.msg_type.replace("_request", "_reply"), reply, header);
      }
      this.publish("status", { execution_state: "idle" }, header);
      if (header.msg_type === "shutdown_request") {
        return;
      }
    }
  }

  /** A request, unless it is not signed or is not one. */
  #read(frames) {
    const start = frames.findIndex((frame) => frame.toString("latin1") === DELIMITER);
    if (start < 0 || frames.length < start + 6) {
      return undefined;
    }
    const [signature, ...parts] = frames.slice(start + 1, start + 6);
    const expected = Buffer.from(this.#sign(parts));
    if (signature.length !== expected.length || !timingSafeEqual(signature, expected)) {
      return undefined;
    }
    try {
      const [header, , , content] = parts.map((part) => JSON.parse(part.toString("utf8")));
      return { peers: frames.slice(0, start), header, content };
    } catch {
      return undefined;
    }
  }

  #send(socket, peers, type, content, parent) {
    const header = {
      msg_id: randomUUID(),
      session: this.#session,
      username: "kernel",
      date: new Date().toISOString(),
      msg_type: type,
      version: VERSION,
    };
    const parts = [header, parent, {}, content].map((part) => Buffer.from(JSON.stringify(part)));
    socket.send([...peers, DELIMITER, this.#sign(parts), ...parts]).catch(() => {
      // Whoever asked is gone.
    });
  }

  #sign(parts) {
    const { key, signature_scheme: scheme = "hmac-sha256" } = this.#connection;
    if (!key) {
      return "";
    }
    const code = createHmac(scheme.replace("hmac-", ""), key);
    parts.forEach((part) => code.update(part));
    return code.digest("hex");
  }
}
