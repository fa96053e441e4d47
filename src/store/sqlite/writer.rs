//! The one connection that writes.
//!
//! A commit waits for the disk, so writes that come in meanwhile are put into one transaction and committed together,
//! each in a savepoint of its own: what one of them is refused does not touch the others.

use futures::future::BoxFuture;
use sqlx::{ConnectOptions, Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::sync::{mpsc, oneshot};

use crate::store::{Result, StoreError};

/// Writes at most that one commit holds: what comes after them waits for it.
const BATCH: usize = 64;

/// Hands writes to the connection.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::UnboundedSender<Message>,
}

enum Message {
    Write(Box<dyn Write>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// Writes on this connection, and on new ones made so when it fails.
    pub(super) fn start(connection: SqliteConnection, options: SqliteConnectOptions) -> Self {
        let (queue, messages) = mpsc::unbounded_channel();
        let task = Task {
            connection,
            options,
            messages,
        };
        tokio::spawn(task.run());
        Self { queue }
    }

    /// Does the work in a transaction, whether or not the caller stays to see it. What it answers is durable.
    pub(super) async fn write<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let write = Message::Write(Box::new(Pending {
            work: Some(work),
            result: None,
            caller,
        }));
        // Either fails when the task is gone.
        let _ = self.queue.send(write);
        answer.await.map_err(|_| closed())?
    }

    /// Finishes what came before, and closes.
    pub(super) async fn close(&self) {
        let (caller, closed) = oneshot::channel();
        let _ = self.queue.send(Message::Close(caller));
        let _ = closed.await;
    }
}

/// A write, whatever it answers.
trait Write: Send {
    /// Does it.
    fn run<'c>(&'c mut self, db: &'c mut SqliteConnection) -> BoxFuture<'c, Outcome>;
    /// Tells the caller, now that it is durable or never will be.
    fn answer(self: Box<Self>, committed: Result<()>);
}

/// What came of a write.
enum Outcome {
    /// It is to be kept.
    Done,
    /// It is to be undone.
    Refused,
    /// The database failed, so that nobody knows what became of the transaction.
    Failed(String),
}

struct Pending<T, W> {
    work: Option<W>,
    result: Option<Result<T>>,
    caller: oneshot::Sender<Result<T>>,
}

impl<T, W> Write for Pending<T, W>
where
    T: Send,
    W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send,
{
    fn run<'c>(&'c mut self, db: &'c mut SqliteConnection) -> BoxFuture<'c, Outcome> {
        Box::pin(async {
            let Some(work) = self.work.take() else {
                return Outcome::Refused;
            };
            match self.result.insert(work(db).await) {
                Ok(_) => Outcome::Done,
                Err(StoreError::Unavailable(error)) => Outcome::Failed(error.clone()),
                Err(_) => Outcome::Refused,
            }
        })
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let result = self.result.unwrap_or_else(|| Err(closed()));
        // The caller need not be there any more.
        let _ = self.caller.send(committed.and(result));
    }
}

/// Owns the connection.
struct Task {
    connection: SqliteConnection,
    options: SqliteConnectOptions,
    messages: mpsc::UnboundedReceiver<Message>,
}

impl Task {
    async fn run(mut self) {
        let mut closing = None;
        while closing.is_none() {
            match self.messages.recv().await {
                Some(Message::Write(first)) => closing = self.commit_together(first).await,
                Some(Message::Close(caller)) => closing = Some(caller),
                None => break,
            }
        }
        if let Err(error) = self.connection.close().await {
            tracing::warn!(%error, "the database was not closed well");
        }
        if let Some(caller) = closing {
            let _ = caller.send(());
        }
    }

    /// Runs a write and those that wait behind it, and commits them.
    async fn commit_together(&mut self, first: Box<dyn Write>) -> Option<oneshot::Sender<()>> {
        let mut batch = vec![first];
        let mut closing = None;
        let committed = self.transaction(&mut batch, &mut closing).await;
        if committed.is_err() {
            self.begin_anew().await;
        }
        for write in batch {
            write.answer(committed.clone().map_err(StoreError::Unavailable));
        }
        closing
    }

    async fn transaction(
        &mut self,
        batch: &mut Vec<Box<dyn Write>>,
        closing: &mut Option<oneshot::Sender<()>>,
    ) -> std::result::Result<(), String> {
        let text = |error: sqlx::Error| error.to_string();
        // Takes the write lock at once: a transaction that begins by reading cannot be made to wait for another
        // process later, it fails.
        self.connection.execute("BEGIN IMMEDIATE").await.map_err(text)?;
        let mut next = batch.first_mut();
        while let Some(write) = next {
            self.connection.execute("SAVEPOINT one").await.map_err(text)?;
            match write.run(&mut self.connection).await {
                Outcome::Done => {}
                Outcome::Refused => {
                    self.connection.execute("ROLLBACK TO one").await.map_err(text)?;
                }
                Outcome::Failed(error) => return Err(error),
            }
            self.connection.execute("RELEASE one").await.map_err(text)?;
            next = None;
            if batch.len() < BATCH && closing.is_none() {
                match self.messages.try_recv() {
                    Ok(Message::Write(write)) => {
                        batch.push(write);
                        next = batch.last_mut();
                    }
                    Ok(Message::Close(caller)) => *closing = Some(caller),
                    Err(_) => {}
                }
            }
        }
        self.connection.execute("COMMIT").await.map_err(text)?;
        Ok(())
    }

    /// Leaves nothing of a transaction that failed. SQLite may have ended it by itself, as it does when the disk is
    /// full, so that asking it to is no use; a new connection is in no transaction for certain.
    async fn begin_anew(&mut self) {
        let _ = self.connection.execute("ROLLBACK").await;
        match self.options.connect().await {
            Ok(connection) => self.connection = connection,
            Err(error) => tracing::error!(%error, "the database cannot be opened again"),
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}
