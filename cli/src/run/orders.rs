//! What a launcher and the parts of its job on other hosts say to each other: the assignment and then orders down the standard
//! input of a part, reports up its standard error, each a line that begins with a mark which only the two know.
//! Pure: bytes in, bytes out. Nothing of it is on a command line, where every user of a host could read it.

use super::End;
use rma::Rank;
use rma::config::Token;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, ErrorKind, Read};
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;

/// Opens an assignment; another version of the command does not know it.
const GREETING: &str = "rma part 1";
/// The longest field, far above what a system takes as one argument or variable.
const MAX_FIELD_BYTES: u64 = 4 << 20;
/// The most arguments or variables.
const MAX_FIELDS: usize = 1 << 20;
/// The longest piece of the standard input.
pub(crate) const MAX_INPUT_BYTES: usize = 64 * 1024;

/// Everything a part needs to start its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// What the launcher calls the host, for messages.
    pub(crate) host: String,
    /// What a report begins with.
    pub(crate) mark: String,
    pub(crate) token: Token,
    /// Of the whole job.
    pub(crate) ranks: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// Where rank 0 listens; empty for the part that has it, which reports where.
    pub(crate) root: String,
    /// On which the ranks here listen.
    pub(crate) address: IpAddr,
    pub(crate) bind: bool,
    pub(crate) prefix: bool,
    pub(crate) stdin: bool,
    pub(crate) directory: OsString,
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
}

impl Assignment {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |field: &OsStr| {
            out.extend_from_slice(field.as_bytes());
            out.push(0);
        };
        let numbers = [self.ranks, self.first, self.count].map(|number| number.to_string());
        let flags = [self.bind, self.prefix, self.stdin].map(|flag| u8::from(flag).to_string());
        for text in [GREETING, &self.host, &self.mark, &self.token.to_hex(), &self.root, &self.address.to_string()] {
            put(text.as_ref());
        }
        numbers.iter().chain(&flags).for_each(|text| put(text.as_ref()));
        put(&self.directory);
        put(self.variables.len().to_string().as_ref());
        self.variables.iter().for_each(|(name, value)| {
            put(name);
            put(value);
        });
        put(self.command.len().to_string().as_ref());
        self.command.iter().for_each(|word| put(word));
        out
    }

    /// `None` if the launcher went away before it had one to give.
    pub(crate) fn read(input: &mut impl BufRead) -> io::Result<Option<Self>> {
        if input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        if text(input)? != GREETING {
            return Err(malformed("no assignment of this version; have the same `rma` on every host"));
        }
        let [host, mark, token, root] = [text(input)?, text(input)?, text(input)?, text(input)?];
        let address = number(input)?;
        let [ranks, first, count]: [u32; 3] = [number(input)?, number(input)?, number(input)?];
        let [bind, prefix, stdin] = [flag(input)?, flag(input)?, flag(input)?];
        let directory = field(input)?;
        let variables = (0..length(input)?).map(|_| Ok((field(input)?, field(input)?))).collect::<io::Result<_>>()?;
        let command = (0..length(input)?).map(|_| field(input)).collect::<io::Result<_>>()?;
        let token = Token::from_hex(&token).ok_or_else(|| malformed("a token that is none"))?;
        if first.checked_add(count).is_none_or(|end| count == 0 || end > ranks) {
            return Err(malformed("ranks that the job does not have"));
        }
        Ok(Some(Self { host, mark, token, ranks, first, count, root, address, bind, prefix, stdin, directory, variables, command }))
    }
}

/// What a part is to do once its ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Pass this signal on to every process of every rank.
    Signal(i32),
    /// The next of what rank 0 reads; the launcher sends more only when this was taken.
    Input(Vec<u8>),
    InputEnd,
}

impl Order {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Signal(signal) => format!("signal\0{signal}\0").into_bytes(),
            Self::Input(bytes) => [format!("input\0{}\0", bytes.len()).as_bytes(), bytes].concat(),
            Self::InputEnd => b"end\0".to_vec(),
        }
    }

    /// `None` when the launcher has gone.
    pub(crate) fn read(input: &mut impl BufRead) -> io::Result<Option<Self>> {
        if input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        Ok(Some(match text(input)?.as_str() {
            "signal" => Self::Signal(number(input)?),
            "end" => Self::InputEnd,
            "input" => {
                let len = number::<usize>(input)?;
                if len > MAX_INPUT_BYTES {
                    return Err(malformed("more input at once than a part takes"));
                }
                let mut bytes = vec![0; len];
                input.read_exact(&mut bytes)?;
                Self::Input(bytes)
            }
            _ => return Err(malformed("an unknown order")),
        }))
    }
}

/// What a part tells its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Rank 0 will listen here.
    Root(String),
    Ended(Rank, End),
    /// Rank 0 took its input, and can be sent more.
    InputTaken,
    /// Rank 0 reads no more.
    InputClosed,
}

impl Report {
    /// As it stands behind the mark.
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Root(root) => format!("root {root}"),
            Self::Ended(rank, End::Exited(status)) => format!("exited {} {status}", rank.0),
            Self::Ended(rank, End::Killed { signal, core_dumped }) => {
                format!("killed {} {signal} {}", rank.0, u8::from(*core_dumped))
            }
            Self::InputTaken => "taken".into(),
            Self::InputClosed => "closed".into(),
        }
    }

    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let words: Vec<_> = std::str::from_utf8(line).ok()?.split_whitespace().collect();
        let rank = |word: &str| word.parse().ok().map(Rank);
        Some(match words.as_slice() {
            ["root", root] => Self::Root((*root).into()),
            ["exited", number, status] => Self::Ended(rank(number)?, End::Exited(status.parse().ok()?)),
            ["killed", number, signal, core] => {
                Self::Ended(rank(number)?, End::Killed { signal: signal.parse().ok()?, core_dumped: *core == "1" })
            }
            ["taken"] => Self::InputTaken,
            ["closed"] => Self::InputClosed,
            _ => return None,
        })
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

fn field(input: &mut impl BufRead) -> io::Result<OsString> {
    let mut bytes = Vec::new();
    input.by_ref().take(MAX_FIELD_BYTES).read_until(0, &mut bytes)?;
    match bytes.pop() {
        Some(0) => Ok(OsString::from_vec(bytes)),
        _ => Err(malformed("a field without its end")),
    }
}

fn text(input: &mut impl BufRead) -> io::Result<String> {
    field(input)?.into_string().map_err(|_| malformed("a field that is not UTF-8"))
}

fn number<T: FromStr>(input: &mut impl BufRead) -> io::Result<T> {
    text(input)?.parse().map_err(|_| malformed("a field that is no number or address"))
}

fn flag(input: &mut impl BufRead) -> io::Result<bool> {
    Ok(number::<u8>(input)? != 0)
}

fn length(input: &mut impl BufRead) -> io::Result<usize> {
    let length = number(input)?;
    if length > MAX_FIELDS { Err(malformed("more fields than there can be")) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> Assignment {
        Assignment {
            host: "node-7".into(),
            mark: "abc".into(),
            token: Token([0x5a; 16]),
            ranks: 8,
            first: 4,
            count: 2,
            root: "[2001:db8::1]:7000".into(),
            address: "10.0.0.7".parse().unwrap(),
            bind: true,
            prefix: false,
            stdin: true,
            directory: OsString::from_vec(b"/a b/\xff\n".to_vec()),
            variables: vec![("A".into(), "".into()), ("B".into(), OsString::from_vec(b"\xfe='$x'\n".to_vec()))],
            command: vec!["./p r".into(), "".into(), "-n".into()],
        }
    }

    #[test]
    fn an_assignment_and_orders_arrive_as_they_were_sent() {
        let orders = [Order::Signal(15), Order::Input(b"a\0b\n".to_vec()), Order::Input(Vec::new()), Order::InputEnd];
        let mut bytes = assignment().encode();
        orders.iter().for_each(|order| bytes.extend(order.encode()));
        let mut input = bytes.as_slice();
        assert_eq!(Assignment::read(&mut input).unwrap(), Some(assignment()));
        for order in orders {
            assert_eq!(Order::read(&mut input).unwrap(), Some(order));
        }
        assert_eq!(Order::read(&mut input).unwrap(), None);
        assert_eq!(Assignment::read(&mut &b""[..]).unwrap(), None);
    }

    #[test]
    fn what_is_cut_or_changed_is_refused_and_costs_no_memory() {
        let whole = assignment().encode();
        for end in 1..whole.len() {
            assert!(Assignment::read(&mut &whole[..end]).is_err(), "cut after {end} bytes");
        }
        let outside = Assignment { first: 7, ..assignment() };
        assert!(Assignment::read(&mut outside.encode().as_slice()).is_err());
        for bad in ["input,99999999999,", "signal,x,", "dance,", "input,5,abc"] {
            assert!(Order::read(&mut bad.replace(',', "\0").as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn reports_arrive_as_they_were_sent_and_others_are_none() {
        let killed = End::Killed { signal: 11, core_dumped: true };
        for report in [
            Report::Root("10.0.0.1:7000".into()),
            Report::Ended(Rank(3), End::Exited(0)),
            Report::Ended(Rank(4), killed),
            Report::InputTaken,
            Report::InputClosed,
        ] {
            assert_eq!(Report::parse(report.encode().as_bytes()), Some(report));
        }
        for bad in ["", "exited 1", "exited x 0", "killed 1 2", "root", "taken twice"] {
            assert_eq!(Report::parse(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
