import Glibc
import NotificationServer
import Settings
import Terminal

extension ListenAddress {
    /// The failure to report where one of these addresses could not be listened on: a host that has no address is named
    /// as such, in place of the library's words.
    static func failure(_ error: any Error, of addresses: [ListenAddress]) -> any Error {
        // The notification endpoint wraps what the library says, the other servers hand it on as it is.
        let isUnexplained =
            (error as? ServerError)?.code == .listenFailed
            || !(error is CommandFailure) && CommandFailure(knownCause: error) == nil
        guard isUnexplained else { return error }
        for address in addresses where !address.isHostKnown {
            return CommandFailure(
                .failed,
                cause: "cannot listen on \(address): the host name \(address.host) is not known",
                nextStep: "correct it in \(address.setting), or write an address such as 127.0.0.1"
            )
        }
        return error
    }

    /// Asks the system's resolver: call it where nothing else waits for the thread.
    private var isHostKnown: Bool {
        var found: UnsafeMutablePointer<addrinfo>?
        let result = getaddrinfo(host, nil, nil, &found)
        if result == 0 { freeaddrinfo(found) }
        return result == 0
    }
}

extension Configuration {
    /// The failure to report where the daemon ended with an error.
    func failure(_ error: any Error) -> any Error {
        ListenAddress.failure(error, of: [notificationAddress, operationsAddress])
    }
}
