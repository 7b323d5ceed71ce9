// JSON-RPC over one WebSocket: a message is a frame.

/** An error answer, or what happened to the connection. */
export class Fault extends Error {
  /** @param {{code?: number, message?: string, data?: any}} error */
  constructor(error) {
    super(error.message ?? "no reason was given");
    this.code = error.code;
    this.data = error.data;
    this.reason = error.data?.reason;
  }
}

export const LOST = { code: -32050, message: "the connection to the bus was lost", data: { reason: "disconnected" } };

export class Peer {
  /**
   * @param {string} token
   * @param {{opened: () => void, heard: (message: any, size: number) => void, closed: (wasOpen: boolean, code: number) => void}} events
   */
  constructor(token, events) {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.events = events;
    this.next = 1;
    /** @type {Map<number, {done: (value: any) => void, failed: (fault: Fault) => void}>} */ this.waiting = new Map();
    this.isOpen = false;
    /** When something was last heard. */
    this.heardAt = Date.now();
    this.socket = new WebSocket(`${scheme}://${location.host}/acp`, ["acp.v1", `bearer.${token}`]);
    this.socket.onopen = () => {
      this.isOpen = true;
      this.heardAt = Date.now();
      events.opened();
    };
    this.socket.onmessage = ({ data }) => this.take(data);
    this.socket.onclose = ({ code }) => this.ended(code);
  }

  /** @param {string} text */
  take(text) {
    this.heardAt = Date.now();
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return;
    }
    if (message.method === undefined && this.waiting.has(message.id)) {
      const { done, failed } = /** @type {any} */ (this.waiting.get(message.id));
      this.waiting.delete(message.id);
      this.events.heard(message, text.length);
      if (message.error) failed(new Fault(message.error));
      else done(message.result);
    } else if (message.method !== undefined) {
      this.events.heard(message, text.length);
    }
  }

  /** @param {number} code */
  ended(code) {
    const wasOpen = this.isOpen;
    this.isOpen = false;
    for (const { failed } of this.waiting.values()) failed(new Fault(LOST));
    this.waiting.clear();
    this.events.closed(wasOpen, code);
  }

  /** @param {any} message */
  send(message) {
    if (this.isOpen) this.socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  /**
   * @param {string} method
   * @param {any} [params]
   * @param {any} [more] further members of the message
   * @returns {Promise<any> & {rpc: number}}
   */
  ask(method, params, more) {
    const rpc = this.next++;
    const answer = new Promise((done, failed) => {
      if (!this.isOpen) return failed(new Fault(LOST));
      this.waiting.set(rpc, { done, failed });
      this.send({ id: rpc, method, params: params ?? {}, ...more });
    });
    return Object.assign(answer, { rpc });
  }

  close() {
    this.socket.onclose = null;
    this.socket.close();
    this.ended(1000);
  }
}
