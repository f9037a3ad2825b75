/// The exit codes of siwad; the numbers from 64 on are those of sysexits(3).
package enum CommandStatus: Int32, Sendable {
    /// Everything was done.
    case done = 0
    /// It failed.
    case failed = 1
    /// Some of the items failed.
    case partlyFailed = 2
    /// No item matched.
    case nothingMatched = 4
    /// The command line is wrong.
    case usage = 64
    /// The database or Apple can't be reached.
    case unavailable = 69
    /// The configuration is wrong.
    case configuration = 78
}
