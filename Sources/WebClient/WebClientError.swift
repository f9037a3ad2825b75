import AsyncHTTPClient
import Glibc
import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL

/// The reason why a request to Apple, or to a stand-in for Apple, failed.
package struct WebClientError: Error, Sendable, Equatable, CustomStringConvertible {
    package enum Code: Sendable, Equatable {
        case invalidURL
        case unreadableFile
        /// No connection, or the connection broke.
        case unreachable
        case timedOut
        case unexpectedStatus(Int)
        case tooLarge
    }

    package let code: Code
    /// One line with the cause and the next step.
    package let message: String

    package init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    package var description: String { message }
}

/// Describes for operators why a request has no response. The descriptions of the libraries name their own types, files
/// and lines.
enum PlainCause {
    /// The cause in one line.
    ///
    /// - Parameter trustAdvice: what to do about a certificate that this machine does not trust.
    static func words(for error: any Error, from url: String, trustAdvice: String = usualTrustAdvice) -> String {
        switch error {
        case let error as IOError:
            lowercased(String(cString: strerror(error.errnoCode)))
        case let error as NIOConnectionError:
            // An address that refused says more than a failed look-up of the other address family.
            error.connectionErrors.first.map { words(for: $0.error, from: url, trustAdvice: trustAdvice) }
                ?? unknown(error.host)
        case let error as SocketAddressError.UnknownHost:
            unknown(error.host)
        case let error as HTTPClientError where timeouts.contains(error):
            late
        case let error as HTTPClientError where [.remoteConnectionClosed, .uncleanShutdown].contains(error):
            closed
        case let error as HTTPClientError where error == .proxyAuthenticationRequired:
            "the proxy wants a user and a password, which siwad does not send"
        case let error as HTTPClientError where error == .invalidProxyResponse:
            "the proxy did not open a tunnel to \(host(of: url))"
        case let error as HTTPClientError where error == .httpProxyHandshakeTimeout:
            proxyLate
        case let error as HTTPClientError where plain.contains(error):
            lowercased(error.shortDescription)
        case NIOSSLError.handshakeFailed(let cause):
            words(forHandshake: "\(cause)", with: host(of: url), trustAdvice)
        case let error as NIOSSLExtraError where error == .failedToValidateHostname:
            "the certificate of \(host(of: url)) is for another name"
        case ChannelError.connectTimeout:
            late
        case NIOSSLError.uncleanShutdown, HTTPParserError.invalidEOFState, HTTPParserError.closedConnection,
            ChannelError.eof, ChannelError.inputClosed, ChannelError.outputClosed, ChannelError.ioOnClosedChannel,
            ChannelError.alreadyClosed:
            closed
        case is HTTPParserError:
            "the answer is not HTTP"
        case is NIOTooManyBytesError:
            "the answer is too long"
        case is CancellationError:
            "interrupted"
        default:
            "the connection failed"
        }
    }

    /// Describes a TLS handshake that failed.
    ///
    /// - Parameter report: the error of BoringSSL as text, the only form that contains its codes.
    static func words(
        forHandshake report: String,
        with host: Substring,
        _ trustAdvice: String = usualTrustAdvice
    ) -> String {
        if report.contains("CERTIFICATE_VERIFY_FAILED") {
            return "this machine does not trust the certificate of \(host) (\(trustAdvice))"
        }
        if report.contains("PROTOCOL_VERSION") || report.contains("UNSUPPORTED_PROTOCOL") {
            return "\(host) speaks neither TLS 1.2 nor 1.3"
        }
        if report.contains("EOF during handshake") { return "\(host) closed the connection in the TLS handshake" }
        return "the TLS handshake with \(host) failed (perhaps it speaks http: only)"
    }

    /// True if an open connection ended before the answer was complete.
    static func isBrokenConnection(_ error: any Error) -> Bool {
        switch error {
        case let error as IOError: [ECONNRESET, EPIPE].contains(error.errnoCode)
        case let error as HTTPClientError: [.remoteConnectionClosed, .uncleanShutdown].contains(error)
        case NIOSSLError.uncleanShutdown, HTTPParserError.invalidEOFState, HTTPParserError.closedConnection,
            ChannelError.eof, ChannelError.inputClosed, ChannelError.outputClosed, ChannelError.ioOnClosedChannel,
            ChannelError.alreadyClosed:
            true
        default: false
        }
    }

    static let timeouts: [HTTPClientError] = [
        .deadlineExceeded, .readTimeout, .connectTimeout, .getConnectionFromPoolTimeout, .tlsHandshakeTimeout,
    ]

    static let proxyRefusals: [HTTPClientError] = [.proxyAuthenticationRequired, .invalidProxyResponse]

    static let proxyLate = "no connection through the proxy in time"
    private static let usualTrustAdvice = "use one of a known authority, or http: to a loopback address"
    private static let late = "no answer in time"
    private static let closed = "the connection was closed before an answer came"

    private static func unknown(_ host: String) -> String { "the host name \(host) is not known" }

    /// Errors of the client with a clear short description.
    private static let plain: [HTTPClientError] = [.invalidURL, .emptyHost, .cancelled]

    private static func lowercased(_ text: String) -> String {
        text.prefix(1).lowercased() + text.dropFirst()
    }

    /// The host as written in the URL, without a user's name and password.
    private static func host(of url: String) -> Substring {
        let rest = url.firstRange(of: "://").map { url[$0.upperBound...] } ?? url[...]
        let authority = rest.prefix { $0 != "/" && $0 != "?" && $0 != "#" }
        let place = authority.split(separator: "@").last ?? authority
        if place.hasPrefix("["), let end = place.firstIndex(of: "]") { return place[...end] }
        return place.prefix { $0 != ":" }
    }
}
