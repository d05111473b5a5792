// Requests to the server of the page. The secret comes in the fragment of the address, and is kept for this tab; a new
// tab asks the others of this page for it.

const channel = new BroadcastChannel("berth-dashboard");
let token = "";

// Failure is an answer without data. kind: "away", the runtime does not answer; "ended", the dashboard itself has gone;
// "denied", the secret is wrong; "none", what is asked for does not exist; "other".
export class Failure extends Error {
  constructor(kind, text) {
    super(text);
    this.kind = kind;
  }
}

// findToken takes the secret from the address, which loses it, else from this tab, else from another one.
export async function findToken() {
  const given = /^#token=([A-Za-z0-9]+)$/.exec(location.hash);
  if (given) {
    token = given[1];
    history.replaceState(null, "", "/#/pods");
  } else {
    token = sessionStorage.getItem("token") || (await fromAnotherTab());
  }
  sessionStorage.setItem("token", token);
  channel.onmessage = (message) => {
    if (message.data === "token?" && token) channel.postMessage({ token });
  };
}

function fromAnotherTab() {
  return new Promise((resolve) => {
    channel.onmessage = (message) => typeof message.data?.token === "string" && resolve(message.data.token);
    channel.postMessage("token?");
    setTimeout(() => resolve(""), 300);
  });
}

async function ask(path, signal) {
  let response;
  try {
    response = await fetch("/api/" + path, {
      headers: { Authorization: "Bearer " + token }, signal, cache: "no-store", redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure("ended", "The dashboard does not answer: `berth dashboard` has ended.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  const kind = response.status === 401 ? "denied" : response.status === 404 ? "none" : answer.away ? "away" : "other";
  throw new Failure(kind, answer.error || "The dashboard answers " + response.status + ".");
}

// get returns a document: its data, and now(), the time by the clock of the server.
export async function get(path, signal) {
  const response = await ask(path, signal);
  const document = await response.json().catch(() => { throw new Failure("ended", "The answer broke off."); });
  const ahead = Date.parse(document.at) - performance.now();
  return { data: document.data, now: () => performance.now() + ahead };
}

// follow gives each object of a stream to a function, until the stream or the signal ends. opened is called first.
export async function follow(path, signal, take, opened = () => {}) {
  const response = await ask(path, signal);
  opened();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Failure("ended", "The stream broke off.");
    }
    if (part.done) return;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const object = JSON.parse(line);
      if (object.error) throw new Failure("other", object.error);
      take(object);
    }
  }
}
