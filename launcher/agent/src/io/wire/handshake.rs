//! The beginning of a connection: a greeting in the clear, then Noise with the secret as its key.
//!
//! The client sends `dtrain`, the protocol version, whether it has a secret, and Noise's first message. The
//! server answers with `dtrain`, its version and a code: 0 and Noise's second message, or a refusal. The
//! client then sends an empty frame: a replayed handshake cannot contain it.

use super::secret::Secret;
use super::session::Session;
use snow::{Builder, HandshakeState};

const MAGIC: &[u8] = b"dtrain";
/// Increase it when the bytes on the wire change.
pub(super) const VERSION: u16 = 1;
const VERSION_END: usize = MAGIC.len() + 2;
const GREETING: usize = VERSION_END + 1;
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The bytes of each of Noise's two messages: a public key and a tag.
const NOISE_MESSAGE: usize = 32 + 16;
const ACCEPTED: u8 = 0;

/// The server's reasons for refusing a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refusal {
    /// The other side's version.
    #[error(
        "it uses version {0} of the protocol, and this dtrain version {VERSION}; use the same dtrain on all nodes"
    )]
    Version(u16),
    #[error("its secret differs; use the same secret on all nodes")]
    WrongSecret,
    #[error("the leader has a secret and the member does not; use the same secret on all nodes")]
    SecretMissing,
    #[error("the member has a secret and the leader does not; use the same secret on all nodes")]
    SecretUnexpected,
    #[error("the leader has too many connections")]
    TooMany,
}

impl Refusal {
    fn code(self) -> u8 {
        match self {
            Self::Version(_) => 1,
            Self::WrongSecret => 2,
            Self::SecretMissing => 3,
            Self::SecretUnexpected => 4,
            Self::TooMany => 5,
        }
    }

    /// Returns the server's answer.
    pub(super) fn answer(self) -> [u8; GREETING] {
        greeting(self.code())
    }
}

/// The reasons for ending a handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HandshakeError {
    OtherProtocol,
    Refused(Refusal),
}

fn greeting(last: u8) -> [u8; GREETING] {
    let mut greeting = [last; GREETING];
    greeting[..MAGIC.len()].copy_from_slice(MAGIC);
    greeting[MAGIC.len()..VERSION_END].copy_from_slice(&VERSION.to_be_bytes());
    greeting
}

/// Returns the version, and the last byte of the greeting if it has come.
fn read_greeting(bytes: &[u8]) -> Result<Option<(u16, Option<u8>)>, HandshakeError> {
    let common = bytes.len().min(MAGIC.len());
    if bytes[..common] != MAGIC[..common] {
        return Err(HandshakeError::OtherProtocol);
    }
    let version = bytes.get(MAGIC.len()..).and_then(<[u8]>::first_chunk);
    Ok(version.map(|version| (u16::from_be_bytes(*version), bytes.get(VERSION_END).copied())))
}

fn noise<'a>(secret: &'a Secret, greeting: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::new(NOISE.parse()?).psk(0, secret.key())?.prologue(greeting)
}

/// A client that waits for the server's answer.
#[derive(Debug)]
pub(super) struct Handshake {
    noise: HandshakeState,
}

impl Handshake {
    /// Returns the bytes to send. Errors: the system has no random numbers.
    pub(super) fn begin(secret: &Secret) -> Result<(Self, Vec<u8>), snow::Error> {
        let greeting = greeting(u8::from(!secret.is_none()));
        let mut noise = noise(secret, &greeting)?.build_initiator()?;
        let mut message = [0; NOISE_MESSAGE];
        noise.write_message(&[], &mut message)?;
        Ok((Self { noise }, [&greeting[..], &message].concat()))
    }

    /// Returns whether the server's answer is complete. Errors: the server did not accept.
    pub(super) fn is_answered(bytes: &[u8]) -> Result<bool, HandshakeError> {
        let Some((version, Some(code))) = read_greeting(bytes)? else {
            return Ok(false);
        };
        let refusals = [
            Refusal::Version(version),
            Refusal::WrongSecret,
            Refusal::SecretMissing,
            Refusal::SecretUnexpected,
            Refusal::TooMany,
        ];
        match refusals.into_iter().find(|refusal| refusal.code() == code) {
            Some(refusal) => Err(HandshakeError::Refused(refusal)),
            None if code != ACCEPTED || version != VERSION => Err(HandshakeError::OtherProtocol),
            None => Ok(bytes.len() >= GREETING + NOISE_MESSAGE),
        }
    }

    /// Reads a complete answer, and queues the first frame.
    pub(super) fn finish(mut self, bytes: &[u8]) -> Result<Session, HandshakeError> {
        let other = |_| HandshakeError::OtherProtocol;
        let message = bytes.get(GREETING..GREETING + NOISE_MESSAGE).unwrap_or_default();
        self.noise.read_message(message, &mut []).map_err(other)?;
        let noise = self.noise.into_transport_mode().map_err(other)?;
        let mut session = Session::new(noise, &bytes[GREETING + NOISE_MESSAGE..]);
        session.queue(&[]).map_err(|_| HandshakeError::OtherProtocol)?;
        Ok(session)
    }
}

/// Answers a client's greeting; the answer is in the session's outbox. `None`: more bytes are needed.
pub(super) fn answer(bytes: &[u8], secret: &Secret) -> Result<Option<Session>, HandshakeError> {
    let refused = |refusal| Err(HandshakeError::Refused(refusal));
    let has_secret = match read_greeting(bytes)? {
        Some((version, _)) if version != VERSION => return refused(Refusal::Version(version)),
        Some((_, Some(flag @ 0..=1))) => flag == 1,
        Some((_, Some(_))) => return Err(HandshakeError::OtherProtocol),
        _ => return Ok(None),
    };
    match (has_secret, !secret.is_none()) {
        (false, true) => return refused(Refusal::SecretMissing),
        (true, false) => return refused(Refusal::SecretUnexpected),
        _ => {}
    }
    let (greeting, rest) = bytes.split_at(GREETING);
    let Some((message, rest)) = rest.split_at_checked(NOISE_MESSAGE) else {
        return Ok(None);
    };
    let other = |_| HandshakeError::OtherProtocol;
    let mut noise = noise(secret, greeting).and_then(Builder::build_responder).map_err(other)?;
    if noise.read_message(message, &mut []).is_err() {
        return refused(Refusal::WrongSecret);
    }
    let mut reply = [0; NOISE_MESSAGE];
    noise.write_message(&[], &mut reply).map_err(other)?;
    let mut session = Session::new(noise.into_transport_mode().map_err(other)?, rest);
    session.outbox.push(&[&self::greeting(ACCEPTED)[..], &reply].concat());
    Ok(Some(session))
}
