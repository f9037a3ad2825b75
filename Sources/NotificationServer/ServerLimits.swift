package import NIOCore

/// What a client of the notification endpoint may cost. A notification is about one kilobyte, sent at once.
package struct ServerLimits: Sendable {
    /// Open connections. At the limit, silent connections make room.
    package var connections = 8192
    /// The largest body, in bytes.
    package var bodyBytes = 65_536
    /// The largest head of a request, in bytes.
    package var headBytes = 8192
    /// Header fields of a request, trailers included.
    package var headerFields = 64
    /// Requests that are still arriving, in bytes for all connections of an event loop. Above it the slowest are closed.
    package var unfinishedBytes = 16 * 1_048_576
    /// Requests of one connection that wait for their answer before more are read.
    package var pipelined = 32
    /// From the first byte of a request to the end of its head; also for a TLS handshake.
    package var headDeadline = TimeAmount.seconds(10)
    /// From the head of a request to the end of its body.
    package var bodyDeadline = TimeAmount.seconds(10)
    /// From the end of a request to its answer.
    package var answerDeadline = TimeAmount.seconds(25)
    /// How long a connection may stay silent between requests.
    package var idleDeadline = TimeAmount.seconds(75)
    /// How long a connection that the server ends may take to read its last answer.
    package var lingerDeadline = TimeAmount.seconds(2)

    /// The limits that fit Apple's traffic.
    package init() {}

    /// How often deadlines are looked at: often enough for the shortest of them.
    var sweepInterval: TimeAmount {
        let shortest = min(headDeadline, bodyDeadline, answerDeadline, idleDeadline, lingerDeadline)
        return min(.seconds(1), max(.milliseconds(5), .nanoseconds(shortest.nanoseconds / 4)))
    }
}
