import Glibc
import NIOCore

/// Why a server can't start, or can't go on.
package struct ServerError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The kind of fault.
    package enum Code: Sendable, Equatable, CaseIterable {
        /// A listen address that isn't `host:port`.
        case invalidAddress
        /// Another process listens there.
        case addressInUse
        /// This machine has no such address.
        case addressUnavailable
        /// The system doesn't let this user listen there.
        case permissionDenied
        /// Listening failed for another reason.
        case listenFailed
        /// The certificate or key file can't be read, or isn't PEM.
        case unreadableCertificate
        /// The key isn't that of the certificate.
        case keyMismatch
        /// The limit of open files leaves no room for connections.
        case tooFewOpenFiles
    }

    /// The kind of fault.
    package let code: Code
    /// One line: the cause and the next step.
    package let message: String

    /// An error of this kind with its line for the operator.
    package init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    /// The message.
    package var description: String { message }

    /// Says in the operator's words why `address` can't be listened on.
    static func listening(on address: ListenAddress, _ error: any Error) -> ServerError {
        let place = "cannot listen on \(address)"
        guard let error = error as? IOError else {
            return ServerError(.listenFailed, "\(place): \(error); check \(address.setting)")
        }
        switch error.errnoCode {
        case EADDRINUSE:
            return ServerError(
                .addressInUse,
                "\(place): the port is taken; stop what listens there or change \(address.setting)"
            )
        case EADDRNOTAVAIL:
            return ServerError(
                .addressUnavailable,
                "\(place): this machine has no such address; change \(address.setting)"
            )
        case EACCES, EPERM:
            return ServerError(
                .permissionDenied,
                "\(place): permission denied; choose a port above 1023 in \(address.setting) or grant "
                    + "CAP_NET_BIND_SERVICE"
            )
        default:
            return ServerError(.listenFailed, "\(place): \(error.localizedReason); check \(address.setting)")
        }
    }
}

extension IOError {
    fileprivate var localizedReason: String {
        String(cString: strerror(errnoCode))
    }
}
