// Listens to the server's events and updates the changed parts of the page. Every page also works
// without this script. Focus, selection and scroll position are kept.
"use strict";
(() => {
  const root = document.documentElement;
  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "");

  // Changes `old` into `fresh`, node by node. Unchanged nodes are not touched.
  function morph(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old.isEqualNode(fresh)) return;
    for (const { name } of [...old.attributes]) {
      // Keep the details that the user opened.
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value && !(name === "value" && old === document.activeElement)) old.setAttribute(name, value);
    }
    children(old, fresh);
  }

  function children(old, fresh) {
    const byKey = new Map();
    for (const node of old.childNodes) if (key(node)) byKey.set(key(node), node);
    const staying = new Set([...fresh.childNodes].map(key));
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      while (at && key(at) && !staying.has(key(at))) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
      const known = key(wanted) ? byKey.get(key(wanted)) : null;
      if (known && same(known, wanted)) {
        if (known === at) at = at.nextSibling;
        else old.insertBefore(known, at);
        morph(known, wanted);
      } else if (at && same(at, wanted)) {
        const next = at.nextSibling;
        morph(at, wanted);
        at = next;
      } else {
        old.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function follow() {
    const url = document.body.dataset.follow;
    const state = document.getElementById("state");
    const waiting = new Map();
    if (!url || !window.EventSource) return;

    const say = (text) => {
      state.hidden = !text;
      if (state.textContent !== text) state.textContent = text;
    };
    const selected = (part) => {
      const selection = document.getSelection();
      return selection && !selection.isCollapsed && selection.containsNode(part, true);
    };
    const show = (part, text) => {
      const fresh = new DOMParser().parseFromString(text, "text/html").body;
      const across = [...part.querySelectorAll(".scroll, pre")].map((node) => [node, node.scrollLeft, node.scrollTop]);
      const focused = document.activeElement;
      children(part, fresh);
      if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
      for (const [node, left, top] of across) { node.scrollLeft = left; node.scrollTop = top; }
    };
    const apply = () => {
      for (const [name, text] of [...waiting]) {
        const part = document.getElementById(name);
        if (part && selected(part)) continue; // keep the text that the user is copying
        waiting.delete(name);
        if (part) show(part, text);
      }
    };

    let source;
    const connect = () => {
      // A hidden tab opens no stream: a browser has only six connections to a server.
      if (document.hidden || (source && source.readyState !== EventSource.CLOSED)) return;
      source = new EventSource(url);
      source.addEventListener("parts", (event) => {
        say("");
        const parts = Object.entries(JSON.parse(event.data));
        if (parts.length && !parts.some(([name]) => document.getElementById(name))) {
          location.reload(); // this is an error page, and the page exists now
          return;
        }
        for (const [name, text] of parts) waiting.set(name, text);
        apply();
        root.dataset.live = "yes";
      });
      source.addEventListener("away", (event) => say(`This data is outdated: ${JSON.parse(event.data).text}`));
      source.addEventListener("error", () => {
        if (state.hidden) say("This data is outdated: reliq web does not answer. Reconnecting.");
        if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
      });
    };
    connect();
    document.addEventListener("selectionchange", apply);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) source?.close();
      else connect();
    });
    addEventListener("pagehide", () => source?.close());
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  document.addEventListener("DOMContentLoaded", follow);
})();
