import AsyncHTTPClient
import Glibc
import NIOCore
import NIOPosix

/// Why a request had no answer, in an operator's words: what the libraries say names their own types and calls.
enum PlainCause {
    /// The words for an error of a request.
    static func words(for error: any Error) -> String {
        switch error {
        case let error as IOError:
            lowercased(String(cString: strerror(error.errnoCode)))
        case let error as NIOConnectionError:
            // An address that refused says more than a look-up that found none of the other kind.
            error.connectionErrors.first.map { words(for: $0.error) } ?? "the host name \(error.host) is not known"
        case let error as SocketAddressError.UnknownHost:
            "the host name \(error.host) is not known"
        case let error as HTTPClientError where KeySetFetcher.timeouts.contains(error):
            "no answer in time"
        case let error as HTTPClientError where error == .remoteConnectionClosed:
            "the connection was closed before an answer came"
        case let error as HTTPClientError:
            lowercased(error.shortDescription)
        default:
            "\(error)"
        }
    }

    private static func lowercased(_ text: String) -> String {
        text.prefix(1).lowercased() + text.dropFirst()
    }
}
