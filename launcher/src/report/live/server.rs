//! Answers each request on another thread.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::object::{Run, object, summary};
use super::super::page::{POLICY, page};
use super::request::{self, Request};

/// Requests at one time. More are closed unread.
const MOST: usize = 32;
/// The longest wait for a browser that neither sends nor reads.
const PATIENCE: Duration = Duration::from_secs(10);
/// Several browsers get the same data within this time.
const FRESH: Duration = Duration::from_millis(900);

/// The runs of a page.
pub(super) struct Site(Mutex<Content>);

struct Content {
    runs: Vec<Run>,
    left_out: Vec<String>,
    latest: Option<(Instant, Value)>,
}

impl Site {
    pub(super) fn new(runs: Vec<Run>, left_out: Vec<String>) -> Self {
        Self(Mutex::new(Content { runs, left_out, latest: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        // The content is whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: Request) -> (&'static str, String) {
        let mut content = self.lock();
        let object = content.now();
        match request {
            Request::Page => ("text/html; charset=utf-8", page(object)),
            Request::Data => ("application/json", object.to_string()),
        }
    }

    /// Returns the states of the runs.
    pub(super) fn states(&self) -> Vec<String> {
        let paths: Vec<_> = self.lock().runs.iter().map(Run::path).collect();
        paths.iter().map(|path| summary(path)["state"].as_str().unwrap_or("unknown").to_owned()).collect()
    }

    /// Returns whether a run is running.
    pub(super) fn is_running(&self) -> bool {
        self.states().iter().any(|state| state == "running")
    }
}

impl Content {
    fn now(&mut self) -> &Value {
        let is_fresh = self.latest.as_ref().is_some_and(|(made, _)| made.elapsed() < FRESH);
        let latest = self.latest.take().filter(|_| is_fresh);
        let latest = latest.unwrap_or_else(|| {
            let object = object(&mut self.runs, &self.left_out, true);
            (Instant::now(), object)
        });
        &self.latest.insert(latest).1
    }
}

/// One of the requests that are being answered, also if answering panics.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(all))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts to answer, until the process ends.
pub(super) fn start(listener: TcpListener, site: Arc<Site>) -> io::Result<()> {
    let threads = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                // No descriptor is free, or the browser is gone again.
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            if threads.load(Ordering::Relaxed) >= MOST {
                continue;
            }
            let (site, counted) = (Arc::clone(&site), Counted::new(&threads));
            let answer = move || {
                let _counted = counted;
                // A browser that is gone needs no answer.
                let _ = serve(&stream, &site);
            };
            // Without a thread, the browser asks again.
            let _ = thread::Builder::new().name("page".into()).spawn(answer);
        }
    };
    thread::Builder::new().name("pages".into()).spawn(accept).map(drop)
}

fn serve(mut stream: &TcpStream, site: &Site) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, (kind, body)) = match request::read(stream)? {
        Ok(request) => ("200 OK", site.answer(request)),
        Err((status, text)) => (status, ("text/plain; charset=utf-8", format!("{text}\n"))),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\
         X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\nX-Frame-Options: DENY\r\n\
         Content-Security-Policy: {POLICY}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}
