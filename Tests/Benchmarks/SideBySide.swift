import FoundationEssentials
import NIOPosix

/// A service under a closed loop, with a database that it has for itself.
struct Entrant: Sendable {
    /// What is posted.
    enum Requests {
        /// Notifications that come for the first time.
        case genuine
        /// Notifications that are all there already, because as many turns went before with them.
        case duplicates
        /// Notifications whose signature is wrong.
        case forged
    }

    let name: String
    let service: Service
    /// The database that its own is a copy of.
    let base: String
    /// The file of what is posted, a line each.
    let bodies: String
    let connections: Int
    var requests = Requests.genuine
}

extension Workbench {
    /// Measures services in turn, each for a second, until each has had its seconds.
    ///
    /// A machine that is shared changes its speed within seconds, by half and more. Whoever comes second by second meets the
    /// same neighbours; the order turns round each time, so that no one always follows the same other. Those that wait
    /// for their turn have nothing to do.
    ///
    /// - Throws: ``BenchmarkError`` when a request was not answered, or not as it has to be.
    func sideBySide(_ entrants: [Entrant], seconds: Int) async throws -> [Measurement] {
        try await copy(entrants.map { ($0.base, $0.service.database) })
        return try await start(entrants[...], beside: []) { figures in
            try await NIOThreadPool.singleton.runIfActive {
                try takeTurns(entrants, figures, seconds: seconds)
            }
        }
    }

    /// Starts the services one after another, and ends them all after `body`.
    private func start<R: Sendable>(
        _ entrants: ArraySlice<Entrant>,
        beside started: [ProcessFigures],
        _ body: @Sendable @escaping ([ProcessFigures]) async throws -> R
    ) async throws -> R {
        guard let next = entrants.first else { return try await body(started) }
        return try await next.service.running { figures in
            try await start(entrants.dropFirst(), beside: started + [figures], body)
        }
    }

    private func takeTurns(_ entrants: [Entrant], _ figures: [ProcessFigures], seconds: Int) throws -> [Measurement] {
        var files: [String: [UInt8]] = [:]
        let loops = try entrants.map { entrant in
            // All of it read before, not mapped: the copy of a large database drives the file out of the kernel's memory,
            // and a load that waits for the disk measures that.
            let bodies = try files[entrant.bodies] ?? Array(Data(contentsOf: URL(filePath: entrant.bodies)))
            files[entrant.bodies] = bodies
            return try ClosedLoop(
                entrant.connections,
                to: entrant.service.url,
                bodies,
                // What is refused leaves nothing behind, so it is refused again in the same way.
                sendsAgain: entrant.requests == .forged
            )
        }
        for (entrant, loop) in zip(entrants, loops) where entrant.requests == .duplicates {
            try loop.run(seconds)
            loop.startAgain()
        }
        var times = [ProcessorTimes](repeating: ProcessorTimes(), count: entrants.count)
        for turn in 0..<seconds {
            let order = Array(entrants.indices)
            for index in turn.isMultiple(of: 2) ? order : order.reversed() {
                let before = ProcessorTimes(of: figures[index], server)
                try loops[index].run(1)
                times[index].add(ProcessorTimes(of: figures[index], server), since: before)
            }
        }
        return try entrants.indices.map { index in
            try Measurement(loops[index].result, times[index], resident: figures[index].residentMebibytes)
                .answered(as: entrants[index].requests, by: entrants[index].name)
        }
    }
}

extension Measurement {
    /// The same, once it is certain that every request was answered, and as it has to be: what is lost is cheap, and so
    /// is what is refused.
    func answered(as requests: Entrant.Requests, by service: String) throws -> Measurement {
        guard failures == 0 else { throw BenchmarkError("\(service) left \(failures) notifications without an answer") }
        switch requests {
        case .genuine, .duplicates:
            guard refusals == 0 else { throw BenchmarkError("\(service) refused \(refusals) notifications") }
        case .forged:
            guard refusals == count else {
                throw BenchmarkError("\(service) accepted \(count - refusals) forged notifications")
            }
        }
        return self
    }
}
