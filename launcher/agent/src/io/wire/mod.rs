//! Connections between the agents of several nodes: a server for the leader, a client for each member.
//!
//! TCP with Noise by a pre-shared key. Each frame has one message as JSON, at most 64 KiB with its header. A
//! connection is lost with its unread messages: who needs an answer sends again when connected again. There
//! are no heartbeats here.

mod attempt;
mod client;
mod connect;
mod connection;
mod handshake;
mod message;
mod resolve;
mod secret;
mod serve;
mod server;
mod session;
mod strangers;

pub use attempt::ConnectError;
pub use client::{Client, ClientEvent};
pub use connect::Endpoint;
pub use handshake::Refusal;
pub use message::SendError;
pub use secret::{Secret, SecretError};
pub use serve::{Limits, ServerEvent};
pub use server::{BoundServer, Server};
pub use session::CloseReason;
pub use strangers::StrangerReason;

#[cfg(test)]
mod tests;
