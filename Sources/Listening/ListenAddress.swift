import Glibc
import NIOCore

package struct ListenAddress: Sendable, Equatable, CustomStringConvertible {
    /// A name or a numeric address, without brackets.
    package let host: String
    /// 0 lets the system choose.
    package let port: Int
    /// The name of the setting, for error texts.
    package let setting: String

    package init(host: String, port: Int, setting: String = "the listen address") {
        self.host = host
        self.port = port
        self.setting = setting
    }

    /// Reads `127.0.0.1:8080`, `[::1]:8080` or `name:8080`.
    ///
    /// - Throws: `invalidAddress`, naming `setting`.
    package init(parsing text: String, setting: String) throws(ServerError) {
        let colon = text.lastIndex(of: ":")
        let port = colon.flatMap { Self.port(text[text.index(after: $0)...]) }
        var host = colon.map { text[..<$0] } ?? ""
        if host.hasPrefix("["), host.hasSuffix("]") {
            host = host.dropFirst().dropLast()
        } else if host.contains(":") {
            host = ""
        }
        let isPlain = host.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7F && $0 != UInt8(ascii: "/") }
        guard let port, !host.isEmpty, isPlain else {
            throw ServerError(
                .invalidAddress,
                "\(setting) is not an address to listen on; write host:port, such as 127.0.0.1:8080"
            )
        }
        self.init(host: String(host), port: port, setting: setting)
    }

    package var description: String {
        host.contains(":") ? "[\(host)]:\(port)" : "\(host):\(port)"
    }

    private static func port(_ text: Substring) -> Int? {
        guard !text.isEmpty, text.utf8.allSatisfy({ (0x30...0x39).contains($0) }) else { return nil }
        return UInt16(text).map(Int.init)
    }
}

/// The reason why a server cannot start or continue.
package struct ServerError: Error, Sendable, Equatable, CustomStringConvertible {
    package enum Code: Sendable, Equatable, CaseIterable {
        case invalidAddress
        case addressInUse
        case addressUnavailable
        case permissionDenied
        case listenFailed
        /// The certificate or key file cannot be read or is not PEM.
        case unreadableCertificate
        case keyMismatch
        /// The limit of open files leaves too few connections.
        case tooFewOpenFiles
    }

    package let code: Code
    /// One line with the cause and the next step.
    package let message: String

    package init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    package var description: String { message }

    /// The error for a failure to listen on `address`.
    package static func listening(on address: ListenAddress, _ error: any Error) -> ServerError {
        listening(on: "\(address)", setting: address.setting, error)
    }

    package static func listening(on address: String, setting: String, _ error: any Error) -> ServerError {
        let place = "cannot listen on \(address)"
        guard let error = error as? IOError else {
            return ServerError(.listenFailed, "\(place): \(error); check \(setting)")
        }
        let (code, cause): (Code, String) =
            switch error.errnoCode {
            case EADDRINUSE:
                (.addressInUse, "the port is in use; stop the process that listens there or change \(setting)")
            case EADDRNOTAVAIL:
                (.addressUnavailable, "this machine has no such address; change \(setting)")
            case EACCES, EPERM:
                (
                    .permissionDenied,
                    "permission denied; choose a port above 1023 in \(setting) or grant CAP_NET_BIND_SERVICE"
                )
            default:
                (.listenFailed, "\(String(cString: strerror(error.errnoCode))); check \(setting)")
            }
        return ServerError(code, "\(place): \(cause)")
    }
}
