package import Basics
import Dispatch
import Glibc
import Synchronization

/// Finds the addresses of host names, and keeps them for a minute.
///
/// `getaddrinfo` can block for longer than any caller may wait, so it runs on threads of its own. A host is looked up once at a
/// time, for all callers, so that a name server that does not answer for one host delays no other.
package final class Resolver: Sendable {
    /// Blocks; called on a thread for it.
    package typealias LookUp = @Sendable (_ host: String) -> [IPAddress]

    private typealias Caller = AsyncStream<[IPAddress]>.Continuation

    private struct State {
        var known: [String: (addresses: [IPAddress], until: ContinuousClock.Instant)] = [:]
        /// The callers of each look-up that has not ended. Some may no longer wait.
        var callers: [String: [Caller]] = [:]
    }

    private enum Start {
        case known([IPAddress])
        case joined
        case first
    }

    package static let limit = Duration.seconds(5)
    private static let validity = Duration.seconds(60)

    private let lookUp: LookUp
    private let queue = DispatchQueue(label: "siwad.resolver", attributes: .concurrent)
    private let state = Mutex(State())

    package init(lookUp: @escaping LookUp = Resolver.systemAddresses) {
        self.lookUp = lookUp
    }

    /// - Returns: at least one.
    /// - Parameter limit: how long to wait for the name server, at most five seconds.
    /// - Throws: `unreachable` if the name is unknown, or if the name server does not answer in time.
    package func addresses(
        of host: String,
        within limit: Duration = Resolver.limit
    ) async throws(WebClientError) -> [IPAddress] {
        if let literal = IPAddress(host) { return [literal] }
        let (results, caller) = AsyncStream<[IPAddress]>.makeStream()
        switch start(host, caller) {
        case .known(let addresses): return addresses
        case .joined: break
        case .first: queue.async { [self] in end(host, lookUp(host)) }
        }
        // Ends the wait below. Cancelled once the addresses are there.
        let timer = Task {
            try await Task.sleep(for: min(limit, Self.limit))
            caller.finish()
        }
        defer { timer.cancel() }
        for await addresses in results {
            guard !addresses.isEmpty else {
                throw WebClientError(.unreachable, "the host name \(host) is not known")
            }
            return addresses
        }
        throw WebClientError(.unreachable, "the name server did not answer in time for \(host)")
    }

    /// Looks the host up again at the next call: a connection to its address failed.
    package func forget(_ host: String) {
        state.withLock { $0.known[host] = nil }
    }

    /// The addresses as `getaddrinfo` sorts them; none if the name is unknown.
    package static func systemAddresses(of host: String) -> [IPAddress] {
        var hints = addrinfo()
        hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        var list: UnsafeMutablePointer<addrinfo>?
        guard getaddrinfo(host, nil, &hints, &list) == 0 else { return [] }
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

    private func start(_ host: String, _ caller: Caller) -> Start {
        state.withLock { state in
            if let known = state.known[host], known.until > .now { return .known(known.addresses) }
            let isFirst = state.callers[host] == nil
            state.callers[host, default: []].append(caller)
            return isFirst ? .first : .joined
        }
    }

    private func end(_ host: String, _ addresses: [IPAddress]) {
        let callers = state.withLock { state in
            if !addresses.isEmpty { state.known[host] = (addresses, .now + Self.validity) }
            return state.callers.removeValue(forKey: host) ?? []
        }
        for caller in callers { caller.yield(addresses) }
    }
}
