// What was said before: asked for over HTTP, because the door reads it from disk and the bus does not have it.

import { queryOf } from "../state/past.js";

const TYPING_MS = 150;

export class Past {
  /** @param {import("./bus.js").Bus} bus */
  constructor(bus) {
    this.bus = bus;
    this.typing = 0;
  }

  /** @param {string} path @param {any} [more] */
  async fetch(path, more = {}) {
    const answer = await fetch(path, { headers: { Authorization: `Bearer ${this.bus.token}` }, ...more });
    if (!answer.ok) throw new Error((await answer.text()).trim() || `the door answers ${answer.status}`);
    return answer;
  }

  /** @param {any} action */
  tell(action) {
    this.bus.dispatch({ type: "past", ...action });
  }

  /** Looks for these words once nothing more is typed. @param {string} text */
  search(text) {
    this.look(text, this.bus.state.past.filter);
  }

  /** Looks only where this says. @param {Partial<import("../state/past.js").Filter>} change */
  narrow(change) {
    const { text, filter } = this.bus.state.past;
    this.look(text, { ...filter, ...change });
  }

  /** @param {string} text @param {import("../state/past.js").Filter} filter */
  look(text, filter) {
    this.tell({ what: "looks", text, filter });
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.list(), TYPING_MS);
  }

  /** @param {string} [before] where the next page begins */
  async list(before = "") {
    const { text, filter } = this.bus.state.past;
    try {
      const { sessions: rows, next } = await (await this.fetch(`/history?${queryOf(text, filter, before, Date.now())}`)).json();
      this.tell({ what: "listed", text, filter, rows, next, isMore: !!before });
    } catch (fault) {
      this.tell({ what: "failed", why: fault.message });
    }
  }

  /** A person reads this one. @param {string} id */
  async open(id) {
    if (this.bus.state.past.open?.id === id) return;
    this.tell({ what: "opens", id });
    await this.page(id, 0);
  }

  /** @param {string} id @param {number} from */
  async page(id, from) {
    this.tell({ what: "reads", id });
    try {
      const { session: row, entries, next } = await (await this.fetch(`/history/${encodeURIComponent(id)}?from=${from}&limit=200`)).json();
      this.tell({ what: "read", id, row, entries, next });
    } catch (fault) {
      this.tell({ what: "failed", id, why: fault.message });
    }
  }

  /** @param {string} id @param {string} format */
  async save(id, format) {
    const body = await (await this.fetch(`/history/${encodeURIComponent(id)}?format=${format}`)).blob();
    // A page of what agents have said is saved, and never shown as one of this origin.
    const address = URL.createObjectURL(new Blob([body], { type: "application/octet-stream" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = `${id}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  /** @param {string} id */
  async delete(id) {
    await this.fetch(`/history/${encodeURIComponent(id)}`, { method: "DELETE" });
    this.tell({ what: "gone", id });
  }

  /** What was said last, as the first prompt of another session. @param {string} id @returns {Promise<string>} */
  async primer(id) {
    return (await (await this.fetch(`/history/${encodeURIComponent(id)}?format=primer`)).text()).trimEnd();
  }

  /** Goes on with a session at its agent. @param {any} row @returns {Promise<string | null>} its label; null if the agent cannot. */
  async resume(row) {
    const { pool, agent_session: id } = row;
    const cwd = row.folder || "/";
    // What the agent of another pool can do is not known before it is asked.
    for (const method of ["session/load", "session/resume"]) {
      try {
        return await this.bus.own.resume({ id, pool, cwd, method });
      } catch (fault) {
        if (fault.reason === "disconnected") throw fault;
        this.bus.dispatch({ type: "dropped", session: id });
      }
    }
    return null;
  }

  async usage() {
    try {
      this.tell({ what: "usage", usage: await (await this.fetch("/usage?days=14")).json() });
    } catch {
      // What cannot be told is not shown.
    }
  }
}
