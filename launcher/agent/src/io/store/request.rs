//! Requests of a client of PyTorch's TCPStore, parsed from its bytes.
//!
//! A request is a byte with its number, and its arguments. A number has 8 bytes in the machine's order; a
//! key, a value or a list begins with its length. Memory is only allocated for bytes that have come.

/// The limits of PyTorch's own server.
const LONGEST_KEY: u64 = 8 << 10;
const LONGEST_VALUE: u64 = 8 << 20;
const MOST_KEYS: u64 = 128 << 10;
/// Also the limit of an answer. No program comes near to it.
pub(super) const LONGEST_REQUEST: usize = 64 << 20;

/// The first byte that a client sends since PyTorch 2.2.
const VALIDATE: u8 = 0;
const MAGIC: u32 = 0x3C85_F7CE;
/// The last request number of PyTorch 2.1.
const LAST_OLD: u8 = 11;

/// The request numbers that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Since PyTorch 2.2.
    Current,
    /// Until PyTorch 2.1: without the first request for validation, so each number is less by one.
    Old,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// Key and value.
    Set(&'a [u8], &'a [u8]),
    /// Key, expected value, and the new one.
    CompareSet(&'a [u8], &'a [u8], &'a [u8]),
    Get(&'a [u8]),
    Add(&'a [u8], i64),
    Check(Vec<&'a [u8]>),
    Wait(Vec<&'a [u8]>),
    CountKeys,
    Delete(&'a [u8]),
    Append(&'a [u8], &'a [u8]),
    MultiGet(Vec<&'a [u8]>),
    MultiSet(Vec<(&'a [u8], &'a [u8])>),
    CancelWait,
    Ping([u8; 4]),
    /// The key of a queue, and a value.
    Push(&'a [u8], &'a [u8]),
    Pop(&'a [u8]),
    QueueLength(&'a [u8]),
    ListKeys,
    /// The key, and the number of clients that meet.
    Barrier(&'a [u8], i64),
}

/// The reasons for disconnecting a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientError {
    /// The first bytes are no request.
    #[error("it uses another protocol")]
    Stranger,
    /// A request of a newer PyTorch than this server supports.
    #[error("this version of dtrain does not support its request {0}")]
    Unknown(u8),
    #[error("its key has {0} bytes; the limit is {LONGEST_KEY}")]
    Key(u64),
    #[error("its value has {0} bytes; the limit is {LONGEST_VALUE}")]
    Value(u64),
    #[error("its request has {0} keys; the limit is {MOST_KEYS}")]
    Keys(u64),
    #[error("its request or the answer has more than {LONGEST_REQUEST} bytes")]
    Request,
    #[error("it added to a value that is not a number")]
    NotANumber,
    #[error("the store is full")]
    Full,
    #[error("too many clients; the limit is half of the open files (`ulimit -n`)")]
    Clients,
}

impl ClientError {
    /// Returns the remedy to append to the error.
    pub(super) const fn remedy(&self) -> &'static str {
        match self {
            Self::Stranger | Self::Unknown(_) | Self::Request | Self::Full => {
                ". If the program needs it, set TORCHELASTIC_USE_AGENT_STORE=False: rank 0 then serves the port"
            }
            Self::Key(_) | Self::Value(_) | Self::Keys(_) => {
                ". PyTorch's own store has the same limit: send large objects by a collective, such as broadcast"
            }
            Self::NotANumber | Self::Clients => "",
        }
    }
}

/// Returns the client's dialect and the length of its greeting; `None` if more bytes are needed.
pub(super) fn greet(bytes: &[u8]) -> Result<Option<(Dialect, usize)>, ClientError> {
    match bytes {
        [] => Ok(None),
        [VALIDATE, magic @ ..] => Ok(magic.first_chunk().map(|magic| {
            if u32::from_ne_bytes(*magic) == MAGIC { (Dialect::Current, 5) } else { (Dialect::Old, 0) }
        })),
        [..=LAST_OLD, ..] => Ok(Some((Dialect::Old, 0))),
        _ => Err(ClientError::Stranger),
    }
}

/// Returns the first request in `bytes` and its length; `None` if it is incomplete.
pub(super) fn read(bytes: &[u8], dialect: Dialect) -> Result<Option<(Request<'_>, usize)>, ClientError> {
    let mut reader = Reader { rest: bytes };
    match reader.request(dialect) {
        Ok(request) => Ok(Some((request, bytes.len() - reader.rest.len()))),
        Err(Stop::Invalid(error)) => Err(error),
        Err(Stop::Incomplete) if bytes.len() > LONGEST_REQUEST => Err(ClientError::Request),
        Err(Stop::Incomplete) => Ok(None),
    }
}

enum Stop {
    Incomplete,
    Invalid(ClientError),
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn request(&mut self, dialect: Dialect) -> Result<Request<'a>, Stop> {
        let [sent] = self.array()?;
        let unknown = Stop::Invalid(ClientError::Unknown(sent));
        let number = match dialect {
            Dialect::Current => sent,
            Dialect::Old if sent > LAST_OLD => return Err(unknown),
            Dialect::Old => sent + 1,
        };
        Ok(match number {
            1 => Request::Set(self.key()?, self.value()?),
            2 => Request::CompareSet(self.key()?, self.value()?, self.value()?),
            3 => Request::Get(self.key()?),
            4 => Request::Add(self.key()?, self.number()?),
            5 => Request::Check(self.list(Self::key)?),
            6 => Request::Wait(self.list(Self::key)?),
            7 => Request::CountKeys,
            8 => Request::Delete(self.key()?),
            9 => {
                let key = self.key()?;
                // In PyTorch 2.0 this number deletes a key. A client of 2.1 sends key and value at once.
                match dialect == Dialect::Old && self.rest.is_empty() {
                    true => Request::Delete(key),
                    false => Request::Append(key, self.value()?),
                }
            }
            10 => Request::MultiGet(self.list(Self::key)?),
            11 => Request::MultiSet(self.list(|reader| Ok((reader.key()?, reader.value()?)))?),
            12 => Request::CancelWait,
            13 => Request::Ping(self.array()?),
            14 => Request::Push(self.key()?, self.value()?),
            15 => Request::Pop(self.key()?),
            16 => Request::QueueLength(self.key()?),
            17 => Request::ListKeys,
            18 => Request::Barrier(self.key()?, self.number()?),
            _ => return Err(unknown),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Stop::Incomplete)?;
        self.rest = rest;
        Ok(*array)
    }

    fn number(&mut self) -> Result<i64, Stop> {
        self.array().map(i64::from_ne_bytes)
    }

    fn length(&mut self, most: u64, error: fn(u64) -> ClientError) -> Result<usize, Stop> {
        let length = self.array().map(u64::from_ne_bytes)?;
        match usize::try_from(length) {
            Ok(short) if length <= most => Ok(short),
            _ => Err(Stop::Invalid(error(length))),
        }
    }

    fn bytes(&mut self, most: u64, error: fn(u64) -> ClientError) -> Result<&'a [u8], Stop> {
        let length = self.length(most, error)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Stop::Incomplete)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn key(&mut self) -> Result<&'a [u8], Stop> {
        self.bytes(LONGEST_KEY, ClientError::Key)
    }

    fn value(&mut self) -> Result<&'a [u8], Stop> {
        self.bytes(LONGEST_VALUE, ClientError::Value)
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, Stop>) -> Result<Vec<T>, Stop> {
        let count = self.length(MOST_KEYS, ClientError::Keys)?;
        (0..count).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
