import AppleTokens
import Basics
import HTTPTypes
import HummingbirdCore
import NIOCore
import SignIn

/// The paths of the application endpoint, who may use them, and what they answer. The document about it is `openapi.json`.
struct ApplicationEndpoint: Sendable {
    /// A request with a known caller, whose body is still to be read.
    struct Accepted: Sendable {
        fileprivate let operation: Operation
        fileprivate let caller: Caller?
        fileprivate let idempotencyKey: String?
    }

    struct Response: Sendable {
        let status: Int
        /// nil: no body.
        let type: String?
        let body: ByteBuffer
        var fields: HTTPFields = [:]

        fileprivate init(status: Int = 200, type: String? = "application/json", body: ByteBuffer = ByteBuffer()) {
            self.status = status
            self.type = type
            self.body = body
        }

        init(_ problem: Problem, at path: String = "") {
            self.init(
                status: problem.reason.status,
                type: "application/problem+json",
                body: ByteBuffer(string: problem.json)
            )
            fields[.retryAfter] = problem.retryAfter.map { "\($0)" }
            if problem.reason == .unauthenticated { fields[.wwwAuthenticate] = "Bearer" }
            if problem.reason == .methodNotAllowed {
                fields[.allow] = ApplicationEndpoint.names(of: ApplicationEndpoint.methods(at: path))
            }
        }
    }

    fileprivate enum Operation: Sendable {
        case issueNonce
        case signIn
        case readSession(String)
        case endSession(String)
        case readDocument
    }

    private let service: any ApplicationService
    private let callers: @Sendable () -> CallerDirectory?

    init(service: any ApplicationService, callers: @escaping @Sendable () -> CallerDirectory?) {
        self.service = service
        self.callers = callers
    }

    /// Judges a request by its head.
    func accept(_ request: Request) throws(Problem) -> Accepted {
        guard request.headers[.origin] == nil else {
            throw Problem(
                .clientNotAllowed,
                "The request has the header Origin, so a web page sent it; only backends may."
            )
        }
        let caller = try caller(request.headers[.authorization])
        let operation = try Self.operation(request.method, request.uri.path)
        if request.method == .post { try Self.checkType(of: request.headers) }
        return Accepted(
            operation: operation,
            caller: caller,
            idempotencyKey: HTTPField.Name("Idempotency-Key").flatMap { request.headers[$0] }
        )
    }

    /// Counts and logs a request to sign in that is refused before ``answer(to:_:)``, or at its deadline.
    func refused(_ request: Request, _ problem: Problem, _ accepted: Accepted? = nil) {
        guard request.method == .post, request.uri.path == Self.signInPath else { return }
        service.signInRefused(problem, by: accepted?.caller)
    }

    func answer(to accepted: Accepted, _ body: [UInt8]) async -> Response {
        do throws(Problem) {
            let caller = accepted.caller
            switch accepted.operation {
            case .issueNonce:
                let nonce = try await service.issueNonce(for: IssuedNonce.client(parsing: body), by: caller)
                return Response(body: ByteBuffer(string: nonce.json))
            case .signIn:
                let request = try signInRequest(body, accepted)
                return Response(body: ByteBuffer(string: try await service.signIn(request, by: caller).json))
            case .readSession(let id):
                return Response(body: ByteBuffer(string: try await service.session(id, by: caller).json))
            case .endSession(let id):
                try await service.endSession(id, by: caller)
                return Response(status: 204, type: nil)
            case .readDocument:
                return Response(body: ByteBuffer(bytes: PackageResources.openapi_json))
            }
        } catch {
            return Response(error)
        }
    }

    // MARK: - Private parts

    private func signInRequest(_ body: [UInt8], _ accepted: Accepted) throws(Problem) -> SignInRequest {
        do throws(Problem) {
            return try SignInRequest(parsing: body, idempotencyKey: accepted.idempotencyKey)
        } catch {
            service.signInRefused(error, by: accepted.caller)
            throw error
        }
    }

    /// - Throws: `unauthenticated` if tokens are configured and the request has none of them.
    private func caller(_ authorization: String?) throws(Problem) -> Caller? {
        guard let directory = callers() else { return nil }
        let words = (authorization ?? "").split(separator: " ", maxSplits: 1)
        guard words.count == 2, words[0].lowercased() == "bearer",
            let caller = directory.caller(bearer: Array(words[1].utf8))
        else {
            throw Problem(.unauthenticated, "Send Authorization: Bearer with a token of SIWAD_APPLICATION_TOKENS.")
        }
        return caller
    }

    private static func operation(_ method: HTTPRequest.Method, _ path: String) throws(Problem) -> Operation {
        let methods = methods(at: path)
        guard !methods.isEmpty else {
            throw Problem(.notFound, "Nothing is at this path; GET /v1/openapi.json describes what is.")
        }
        guard methods.contains(method) else { throw Problem(.methodNotAllowed, "Use \(names(of: methods)).") }
        switch path {
        case noncesPath: return .issueNonce
        case signInPath: return .signIn
        case documentPath: return .readDocument
        default:
            let id = path.dropFirst(sessionsPath.count).percentDecoded
            guard let id, id.utf8.count <= 256, !id.utf8.contains(0) else {
                throw Problem(
                    .malformedRequest,
                    "The id of a session has 1 to 256 bytes, percent-encoded, without NUL."
                )
            }
            return method == .delete ? .endSession(id) : .readSession(id)
        }
    }

    private static let noncesPath = "/v1/nonces"
    private static let signInPath = "/v1/sign-in"
    private static let documentPath = "/v1/openapi.json"
    private static let sessionsPath = "/v1/sessions/"

    /// The methods that a path has; none if nothing is there.
    private static func methods(at path: String) -> [HTTPRequest.Method] {
        switch path {
        case noncesPath, signInPath: return [.post]
        case documentPath: return [.get, .head]
        default:
            let id = path.dropFirst(sessionsPath.count)
            return path.hasPrefix(sessionsPath) && !id.isEmpty && !id.contains("/") ? [.get, .head, .delete] : []
        }
    }

    private static func names(of methods: [HTTPRequest.Method]) -> String {
        methods.map(\.rawValue).joined(separator: ", ")
    }

    /// A web page can send other types than JSON to any server without asking it first.
    private static func checkType(of headers: HTTPFields) throws(Problem) {
        let type = (headers[.contentType] ?? "").prefix { $0 != ";" }.trimmed(\.isWhitespace)
        guard type.lowercased() == "application/json", headers[.contentEncoding] ?? "identity" == "identity" else {
            throw Problem(.unsupportedMediaType, "Send the body as application/json, without Content-Encoding.")
        }
    }
}
