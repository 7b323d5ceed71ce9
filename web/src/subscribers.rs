//! Who wants to be told of questions while no page is open: the subscriptions and the key pair, in a file beside that
//! of the tokens.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use kernel_core::config::WebConfig;
use log::{error, info};
use push::book::{Book, Subscription};
use push::vapid::Signer;
use ring::rand::SystemRandom;
use tokio::sync::Notify;

use crate::state_file;

/// A loopback door has no name that others could know.
const NOBODY: &str = "https://localhost";

pub(crate) struct Subscribers {
    /// `None`: they are in memory alone.
    path: Option<PathBuf>,
    book: RefCell<Book>,
    pub(crate) signer: Arc<Signer>,
    /// Where operators of push services can complain.
    pub(crate) subject: String,
    added: Notify,
}

impl Subscribers {
    /// Those of the door whose tokens are in this file. A file without a good key pair is begun anew: what browsers
    /// have subscribed to with another one reaches them no more.
    pub(crate) fn open(tokens: Option<&PathBuf>, web: &WebConfig, public: &str) -> io::Result<Subscribers> {
        let random = SystemRandom::new();
        let path = tokens.map(|tokens| state_file::with_ending(tokens, ".push"));
        let fresh = || {
            let key = Signer::generate(&random).map_err(|_| io::Error::other("no key pair could be made"))?;
            Ok::<_, io::Error>(Book { key, ..Book::default() })
        };
        let mut book = match &path {
            Some(path) => state_file::read::<Book>(path)?,
            None => Book::default(),
        };
        if Signer::read(&book.key, &random).is_none() {
            book = fresh()?;
            if let Some(path) = &path {
                // Another door may have been faster.
                let renew = |kept: &mut Book| match Signer::read(&kept.key, &random) {
                    Some(_) => {}
                    None => kept.clone_from(&book),
                };
                (book, ()) = state_file::update(path, renew)?;
            }
        }
        let signer =
            Signer::read(&book.key, &random).ok_or_else(|| io::Error::other("the key pair is none"))?;
        let far = web.origins.iter().find(|origin| origin.starts_with("https://"));
        let subject = far.map_or(public, String::as_str);
        let subject = if subject.starts_with("https://") { subject } else { NOBODY };
        Ok(Subscribers {
            path,
            book: book.into(),
            signer: signer.into(),
            subject: subject.to_owned(),
            added: Notify::new(),
        })
    }

    /// What browsers need to subscribe.
    pub(crate) fn public_key(&self) -> String {
        self.signer.public_key()
    }

    pub(crate) fn has(&self, token: &str) -> bool {
        self.book.borrow().has(token)
    }

    /// Each browser that wants to be told, once.
    pub(crate) fn browsers(&self) -> Vec<Subscription> {
        self.book.borrow().browsers().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.book.borrow().subscriptions.is_empty()
    }

    /// Waits until somebody wants to be told.
    pub(crate) async fn any(&self) {
        while self.is_empty() {
            self.added.notified().await;
        }
    }

    pub(crate) fn add(&self, subscription: Subscription) -> io::Result<()> {
        self.update(|book| book.add(subscription))?;
        self.added.notify_one();
        Ok(())
    }

    /// Keeps only those for which this holds.
    pub(crate) fn retain(&self, keep: impl Fn(&Subscription) -> bool) -> io::Result<()> {
        if self.book.borrow().subscriptions.iter().all(&keep) {
            return Ok(());
        }
        self.update(|book| {
            book.subscriptions.retain(|one| {
                let is_kept = keep(one);
                if !is_kept {
                    info!("a push subscription of token {} at {} is gone", one.token, one.origin());
                }
                is_kept
            });
        })
    }

    /// The same where nobody waits for what comes of it.
    pub(crate) fn try_retain(&self, keep: impl Fn(&Subscription) -> bool) {
        if let Err(fault) = self.retain(keep) {
            error!("the push subscriptions cannot be written: {fault}");
        }
    }

    fn update(&self, change: impl FnOnce(&mut Book)) -> io::Result<()> {
        match &self.path {
            None => change(&mut self.book.borrow_mut()),
            Some(path) => {
                let (book, ()) = state_file::update(path, change)?;
                *self.book.borrow_mut() = book;
            }
        }
        Ok(())
    }
}
