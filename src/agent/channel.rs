//! The agent's line to its server: calls with answers, and events that arrive in order and without holes.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::{Mutex, mpsc, oneshot},
    task::JoinHandle,
};

use crate::records::{
    Failure,
    protocol::{Answer, AnswerFrame, Call, CallFrame, Event, EventBatch, Stream, What},
};

/// Lines that wait to be sent before a tool that talks too fast is slowed down.
const WAITING_EVENTS: usize = 2_000;

/// Events in one call at most.
const BATCH: usize = 200;

/// Longer lines are cut: no human reads them, and they would hold memory at every hop.
const LONGEST_LINE: usize = 16 * 1024;

/// Callers by the number of their call; none once the server is gone.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Result<Answer, Failure>>>>>>;

/// Calls to the server.
#[derive(Debug, Clone)]
pub struct Channel {
    frames: mpsc::UnboundedSender<(Call, oneshot::Sender<Result<Answer, Failure>>)>,
}

impl Channel {
    /// Speaks over `socket`, which the sandbox's driver made.
    pub fn new(socket: UnixStream) -> Self {
        let (frames, mut queue) = mpsc::unbounded_channel::<(Call, oneshot::Sender<Result<Answer, Failure>>)>();
        let (reader, mut writer) = socket.into_split();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let answered = Arc::clone(&waiting);
        tokio::spawn(async move {
            let mut lines = BufReader::new(reader).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(frame) = serde_json::from_str::<AnswerFrame>(&line) else {
                    break;
                };
                if let Some(caller) = answered
                    .lock()
                    .await
                    .as_mut()
                    .and_then(|callers| callers.remove(&frame.id))
                {
                    // A caller that no longer waits has been cancelled.
                    let _ = caller.send(frame.answer);
                }
            }
            // Dropping the callers tells them that the server is gone; later ones are dropped at once.
            answered.lock().await.take();
        });
        tokio::spawn(async move {
            let mut id = 0;
            while let Some((call, caller)) = queue.recv().await {
                id += 1;
                let Some(()) = waiting
                    .lock()
                    .await
                    .as_mut()
                    .map(|callers| drop(callers.insert(id, caller)))
                else {
                    break;
                };
                let Ok(mut line) = serde_json::to_string(&CallFrame { id, call }) else {
                    break;
                };
                line.push('\n');
                if writer.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        Self { frames }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    ///
    /// The server's own refusal, or `server_lost` when it is gone.
    pub async fn call(&self, call: Call) -> Result<Answer, Failure> {
        let lost = || Failure::new("server_lost", "the agent lost its server");
        let (caller, answer) = oneshot::channel();
        self.frames.send((call, caller)).map_err(|_| lost())?;
        answer.await.map_err(|_| lost())?
    }

    /// A call whose answer can only be [`Answer::Done`].
    pub async fn tell(&self, call: Call) -> Result<(), Failure> {
        match self.call(call).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// An answer that does not fit the call.
pub(super) fn unexpected(answer: &Answer) -> Failure {
    Failure::new(
        "protocol",
        format!("the server gave an answer that does not fit: {answer:?}"),
    )
}

enum Message {
    What(What),
    Flush(oneshot::Sender<()>),
}

/// Numbers what happens and sends it on in batches.
#[derive(Debug, Clone)]
pub struct Events {
    messages: mpsc::Sender<Message>,
}

impl Events {
    /// Starts sending over `channel`. The task ends with the last clone of these events.
    pub fn new(channel: Channel) -> (Self, JoinHandle<()>) {
        let (messages, mut queue) = mpsc::channel(WAITING_EVENTS);
        let sender = tokio::spawn(async move {
            let mut seq = 0;
            let mut received = Vec::with_capacity(BATCH);
            while queue.recv_many(&mut received, BATCH).await > 0 {
                let mut events = Vec::with_capacity(received.len());
                let mut flushed = Vec::new();
                for message in received.drain(..) {
                    match message {
                        Message::What(what) => {
                            events.push(Event {
                                time: Timestamp::now(),
                                what,
                            });
                        }
                        Message::Flush(caller) => flushed.push(caller),
                    }
                }
                if !events.is_empty() {
                    let first = seq;
                    seq += events.len() as u64;
                    if channel
                        .call(Call::PostEvents(EventBatch { first, events }))
                        .await
                        .is_err()
                    {
                        break;
                    }
                }
                for caller in flushed {
                    let _ = caller.send(());
                }
            }
        });
        (Self { messages }, sender)
    }

    /// Something happened. A server that is gone is noticed by the next call, not here.
    pub async fn send(&self, what: What) {
        let _ = self.messages.send(Message::What(what)).await;
    }

    /// The agent itself says a line.
    pub async fn say(&self, text: impl Into<String>) {
        self.send(line(Stream::Agent, text.into())).await;
    }

    /// The same from code that blocks.
    pub fn say_blocking(&self, text: &str) {
        let _ = self
            .messages
            .blocking_send(Message::What(line(Stream::Agent, text.to_owned())));
    }

    /// The same from code that can neither block nor wait. A line may come late when the queue is full.
    pub fn say_soon(&self, text: &str) {
        let message = Message::What(line(Stream::Agent, text.to_owned()));
        if let Err(mpsc::error::TrySendError::Full(message)) = self.messages.try_send(message) {
            let messages = self.messages.clone();
            tokio::spawn(async move { messages.send(message).await });
        }
    }

    /// Returns when the server has kept everything sent so far.
    pub async fn flush(&self) {
        let (caller, flushed) = oneshot::channel();
        if self.messages.send(Message::Flush(caller)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

/// A log event, cut to a length that somebody may read.
pub(super) fn line(stream: Stream, mut text: String) -> What {
    if text.len() > LONGEST_LINE {
        let end = (0..=LONGEST_LINE)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        text.truncate(end);
        text.push_str(" … (line cut)");
    }
    What::Log { stream, text }
}
