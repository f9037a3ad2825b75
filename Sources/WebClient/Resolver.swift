package import Basics
import Dispatch
import Glibc
import Synchronization

/// Finds the addresses of host names, and keeps them for a minute.
///
/// `getaddrinfo` can block for longer than any caller may wait, so it runs on threads of its own. A host is looked up once at a
/// time, for all callers, so that a name server that does not answer for one host delays no other. At most ``mostLookUps``
/// hosts are looked up at the same time; more hosts wait, and their callers give up in time.
package final class Resolver: Sendable {
    /// Blocks; called on a thread for it. Returns no address, or throws `unreachable`, if it finds none.
    package typealias LookUp = @Sendable (_ host: String) throws(WebClientError) -> [IPAddress]

    private typealias Found = Result<[IPAddress], WebClientError>
    private typealias Caller = AsyncStream<Found>.Continuation

    private struct State {
        var known: [String: (addresses: [IPAddress], until: ContinuousClock.Instant)] = [:]
        /// The callers of each look-up that has not ended. Some may no longer wait.
        var callers: [String: [Caller]] = [:]
        /// Hosts that no thread looks up yet, in the order of their first callers.
        var waiting: [String] = []
        var threads = 0
    }

    private enum Start {
        case known([IPAddress])
        case joined
        case first
    }

    package static let limit = Duration.seconds(5)
    static let mostLookUps = 64
    private static let validity = Duration.seconds(60)

    private let lookUp: LookUp
    private let state = Mutex(State())

    package init(lookUp: @escaping LookUp = Resolver.systemAddresses) {
        self.lookUp = lookUp
    }

    /// - Returns: at least one.
    /// - Parameter limit: how long to wait for the name server, at most five seconds.
    /// - Throws: `unreachable` if the name is unknown, or if the name server fails or does not answer in time.
    package func addresses(
        of host: String,
        within limit: Duration = Resolver.limit
    ) async throws(WebClientError) -> [IPAddress] {
        if let literal = IPAddress(host) { return [literal] }
        let (results, caller) = AsyncStream<Found>.makeStream()
        switch start(host, caller) {
        case .known(let addresses): return addresses
        case .joined: break
        // A serial queue gets a thread of its own. A concurrent one would share the threads of Swift's tasks, and look-ups that
        // block would stop all of them.
        case .first: DispatchQueue(label: "siwad.resolver").async { [self] in lookUpAll(startingWith: host) }
        }
        // Ends the wait below. Cancelled once the addresses are there.
        let timer = Task {
            try await Task.sleep(for: min(limit, Self.limit))
            caller.finish()
        }
        defer { timer.cancel() }
        for await found in results {
            let addresses = try found.get()
            guard !addresses.isEmpty else { throw Self.failure(EAI_NONAME, of: host) }
            return addresses
        }
        throw WebClientError(.unreachable, "the name server did not answer in time for \(host)")
    }

    /// Looks the host up again at the next call: a connection to its address failed.
    package func forget(_ host: String) {
        state.withLock { $0.known[host] = nil }
    }

    /// The addresses as `getaddrinfo` sorts them.
    ///
    /// - Throws: `unreachable`.
    package static func systemAddresses(of host: String) throws(WebClientError) -> [IPAddress] {
        var hints = addrinfo()
        hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        var list: UnsafeMutablePointer<addrinfo>?
        let status = getaddrinfo(host, nil, &hints, &list)
        guard status == 0 else { throw failure(status, of: host) }
        defer { freeaddrinfo(list) }
        var addresses: [IPAddress] = []
        for entry in sequence(first: list, next: { $0?.pointee.ai_next }) {
            guard let entry else { break }
            var text = [CChar](repeating: 0, count: Int(NI_MAXHOST))
            let status = getnameinfo(
                entry.pointee.ai_addr,
                entry.pointee.ai_addrlen,
                &text,
                socklen_t(text.count),
                nil,
                0,
                NI_NUMERICHOST
            )
            let numeric = String(decoding: text.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
            // An address with a zone, which is link-local, is none that siwad connects to.
            guard status == 0, let address = IPAddress(numeric), !addresses.contains(address) else { continue }
            addresses.append(address)
        }
        return addresses
    }

    /// EAI_NODATA, which the Glibc module lacks: the name exists, but has no address.
    static let noData: Int32 = -5

    /// The error for a status of `getaddrinfo`.
    static func failure(_ status: Int32, of host: String) -> WebClientError {
        switch status {
        case EAI_NONAME, noData: WebClientError(.unreachable, "the host name \(host) is not known")
        default: WebClientError(.unreachable, "the name server could not answer for \(host)")
        }
    }

    private func start(_ host: String, _ caller: Caller) -> Start {
        state.withLock { state in
            if let known = state.known[host], known.until > .now { return .known(known.addresses) }
            let isFirst = state.callers[host] == nil
            state.callers[host, default: []].append(caller)
            guard isFirst else { return .joined }
            guard state.threads < Self.mostLookUps else {
                state.waiting.append(host)
                return .joined
            }
            state.threads += 1
            return .first
        }
    }

    /// Blocks until no host waits.
    private func lookUpAll(startingWith first: String) {
        var next: String? = first
        while let host = next {
            let found = Found { () throws(WebClientError) in try lookUp(host) }
            next = end(host, found)
        }
    }

    /// - Returns: the next host for the thread; nil: the thread ends.
    private func end(_ host: String, _ found: Found) -> String? {
        let (callers, next) = state.withLock { state -> ([Caller], String?) in
            if case .success(let addresses) = found, !addresses.isEmpty {
                state.known[host] = (addresses, .now + Self.validity)
            }
            let next = state.waiting.isEmpty ? nil : state.waiting.removeFirst()
            if next == nil { state.threads -= 1 }
            return (state.callers.removeValue(forKey: host) ?? [], next)
        }
        for caller in callers { caller.yield(found) }
        return next
    }
}
