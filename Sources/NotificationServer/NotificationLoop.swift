import Ingest
import NIOCore
import Telemetry

/// What the connections of one event loop share. Never leaves it.
final class NotificationLoop {
    /// What clients may cost.
    let limits: ServerLimits
    /// Judges the heads of requests.
    let inspection: RequestInspection
    /// Where requests are counted.
    let metrics: SiwadMetrics
    /// Where bodies go.
    let lane: LaneInterface
    /// The requests that the intake has.
    var tickets = TicketTable<NotificationConnection>()
    /// The bytes of answers.
    var responses = Responses()

    private let eventLoop: any EventLoop
    private let connectionLimit: Int
    private var connections: [NotificationConnection] = []
    private var unfinishedBytes = 0
    private var sweeps = false

    init(
        eventLoop: any EventLoop,
        path: String,
        limits: ServerLimits,
        connectionLimit: Int,
        metrics: SiwadMetrics,
        lane: LaneInterface
    ) {
        self.eventLoop = eventLoop
        self.limits = limits
        self.connectionLimit = connectionLimit
        self.inspection = RequestInspection(path: path, bodyLimit: limits.bodyBytes)
        self.metrics = metrics
        self.lane = lane
    }

    /// A connection was accepted.
    func add(_ connection: NotificationConnection) {
        connection.position = connections.count
        connections.append(connection)
        metrics.connections.add(1)
        if connections.count > connectionLimit {
            // Later: the connection isn't registered yet, and neither it nor another may end in the midst of this.
            eventLoop.assumeIsolated().execute { self.makeRoom() }
        }
        beginSweeps()
    }

    /// A connection is gone, or as good as gone.
    func remove(_ connection: NotificationConnection) {
        guard let position = connection.position, let last = connections.popLast() else { return }
        connection.position = nil
        if last !== connection {
            connections[position] = last
            last.position = position
        }
        metrics.connections.add(-1)
    }

    /// Unfinished bodies grew by so many bytes, or shrank.
    func keptUnfinished(_ bytes: Int) {
        unfinishedBytes += bytes
        if bytes > 0, unfinishedBytes > limits.unfinishedBytes {
            eventLoop.assumeIsolated().execute { self.dropSlowest() }
        }
    }

    /// The intake answered.
    func deliver(_ replies: [Reply]) {
        var touched: [NotificationConnection] = []
        touched.reserveCapacity(replies.count)
        for reply in replies {
            // A request whose connection is gone, or whose time was up, has given its ticket back.
            guard let (connection, sequence) = tickets.redeem(reply.ticket) else { continue }
            connection.answered(sequence, Outcome(reply.answer))
            touched.append(connection)
        }
        for connection in touched {
            connection.flush()
        }
    }

    // MARK: Deadlines

    /// One timer for all connections: a timer for each request would cost more than the request.
    private func beginSweeps() {
        guard !sweeps else { return }
        sweeps = true
        scheduleSweep()
    }

    private func scheduleSweep() {
        _ = eventLoop.assumeIsolated().scheduleTask(in: limits.sweepInterval) {
            let now = NIODeadline.now()
            for connection in self.connections {
                connection.timePassed(now: now)
            }
            self.sweeps = !self.connections.isEmpty
            if self.sweeps {
                self.scheduleSweep()
            }
        }
    }

    // MARK: Room

    /// Closes those that are worth least. A few more than needed, since looking for them costs a walk through all.
    private func makeRoom() {
        let excess = connections.count - connectionLimit
        guard excess > 0 else { return }
        var victims = ranked { _ in true }.filter { $0.worth < .waiting }.map(\.connection)
        victims = Array(victims.prefix(excess + connectionLimit / 64))
        if victims.count < excess {
            // Everyone else waits for an answer: those that came last have to go.
            victims = Array(connections.suffix(excess))
        }
        metrics.evictedConnections.increment(by: victims.count)
        for connection in victims {
            connection.close()
        }
    }

    /// Closes the connections whose bodies have been arriving for the longest time, until a quarter is free.
    private func dropSlowest() {
        for (connection, _) in ranked(where: { $0.unfinishedBytes > 0 }) {
            guard unfinishedBytes > limits.unfinishedBytes / 4 * 3 else { return }
            metrics.evictedConnections.increment()
            connection.close()
        }
    }

    /// The least worth first.
    private func ranked(
        where isCandidate: (NotificationConnection) -> Bool
    ) -> [(connection: NotificationConnection, worth: ConnectionExchange.Worth)] {
        let now = NIODeadline.now()
        return connections.filter(isCandidate).map { ($0, $0.worth(now: now)) }.sorted { $0.1 < $1.1 }
    }
}
