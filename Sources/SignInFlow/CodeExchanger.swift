import AppleTokens
import Basics
import Ingest
import JOSE
import SignIn
package import Telemetry
package import WebClient

/// A code to trade, and what it belongs to.
struct TradedCode: Sendable {
    let code: String
    let redirectURI: String?
    let client: ClientID
    let group: AudienceMap.Group
}

/// What became of a code.
struct Exchange: Sendable {
    let answer: TokenAnswer
    /// The connection of a first attempt broke, which may have used the code.
    let isRepeated: Bool
}

/// Trades codes at Apple's token endpoint: signs client secrets, tries a second key, counts and logs.
package struct CodeExchanger: Sendable {
    package typealias Send = @Sendable (TokenGrant, _ budget: Duration) async -> TokenEndpointClient.Dated

    /// Above this difference between the clocks, it may be the reason why Apple refuses a client secret.
    private static let suspiciousClock = Duration.seconds(30)

    private let send: Send
    private let metrics: SignInMetrics
    private let log: Log
    private let faults: FaultLog

    package init(send: @escaping Send, metrics: SignInMetrics, log: Log) {
        self.send = send
        self.metrics = metrics
        self.log = log
        faults = FaultLog(log)
    }

    /// - Parameter budget: for all attempts.
    func exchange(_ code: TradedCode, with secrets: ClientSecrets, budget: Duration) async -> Exchange {
        let deadline = ContinuousClock.now + budget
        guard var keyID = secrets.keyID(for: code.group) else { preconditionFailure("the caller checks for keys") }
        var tried: [String] = []
        while true {
            tried.append(keyID)
            let secret: String
            do throws(JOSEError) {
                secret = try secrets.secret(for: code.client, of: code.group, keyID: keyID, now: .now())
            } catch {
                faults.error(
                    .appleClient(keyID.description),
                    "a client secret can't be signed with the key \(keyID)",
                    error
                )
                return Exchange(answer: .unavailable(WebClient.Unavailability(.unreachable)), isRepeated: false)
            }
            let dated = await ask(code, secret, max(.milliseconds(100), deadline - .now))
            let exchange = Exchange(answer: dated.answer, isRepeated: dated.isRepeated)
            guard case .clientRefused(let refusal) = dated.answer else {
                if case .unavailable = dated.answer { return exchange }
                secrets.accepted(keyID, for: code.group)
                explain(dated.answer, to: code)
                return exchange
            }
            if refusal.code == .invalidClient,
                case .tryAgain(let next) = secrets.clientRefused(tried: tried, for: code.group)
            {
                keyID = next
                continue
            }
            explain(refusal, of: code.client, tried, dated.date, secrets.lifetime)
            return exchange
        }
    }

    private func ask(_ code: TradedCode, _ secret: String, _ budget: Duration) async -> TokenEndpointClient.Dated {
        let start = ContinuousClock.now
        let grant = TokenGrant.code(
            code.code,
            redirectURI: code.redirectURI,
            clientID: code.client.rawValue,
            clientSecret: secret
        )
        let dated = await send(grant, budget)
        metrics.requestDuration.histogram("token").record(.now - start)
        metrics.requests.increment("token", dated.answer.result)
        if case .unavailable(let unavailability) = dated.answer,
            faults.isDue(.appleTokens(unavailability.cause.rawValue))
        {
            log.warning("Apple's token endpoint gave no answer", ["result": dated.answer.result])
        }
        return dated
    }

    /// Logs why Apple refuses a code, such as a missing redirect URI, which makes every sign-in lack its refresh token.
    private func explain(_ answer: TokenAnswer, to code: TradedCode) {
        switch answer {
        case .grantRefused(let refusal), .requestRefused(let refusal):
            let cause = refusal.detail.words(redirectURI: code.redirectURI)
            guard faults.isDue(.appleCode("\(code.client) \(refusal.code.rawValue) \(cause)")) else { return }
            log.warning(
                "Apple refuses a code",
                ["client_id": code.client.rawValue, "error": refusal.code.rawValue, "cause": cause]
            )
        case .issued, .clientRefused, .unavailable: break
        }
    }

    /// Logs what siwad can see of the reason, then what only Apple's developer portal shows.
    private func explain(
        _ refusal: TokenRefusal,
        of client: ClientID,
        _ tried: [String],
        _ date: String?,
        _ lifetime: Duration
    ) {
        guard faults.isDue(.appleClient("\(client) \(refusal.code.rawValue)")) else { return }
        let ahead = date.flatMap { WallTime(httpDate: $0) }.map { WallTime.now().duration(since: $0) }
        let isWrong = ahead.map { max($0, .zero - $0) > Self.suspiciousClock } ?? false
        let clock = ahead.map { "\($0.components.seconds) s ahead of Apple's" } ?? "unknown, Apple sent no Date"
        log.error(
            isWrong
                ? "Apple refuses the client: this machine's clock is wrong, which makes client secrets invalid; set it"
                : "Apple refuses the client; check in the developer portal that the key exists and is of this team, and that "
                    + "the client id is registered and grouped with the primary App ID",
            [
                "client_id": client.rawValue, "error": refusal.code.rawValue,
                "keys_tried": tried.joined(separator: ", "), "clock": clock,
                "secret_lifetime": "\(lifetime.components.seconds) s",
            ]
        )
    }
}

extension TokenRefusal.Detail {
    /// - Parameter redirectURI: of the request. Apple gives no reason if a code of the web comes without it.
    func words(redirectURI: String?) -> String {
        switch self {
        case .alreadyUsed: "the code was used before"
        case .expiredOrRevoked: "the code has expired or was revoked, or is not one of Apple's"
        case .otherClient: "the code was issued to another client id"
        case .otherRedirectURI: "the code was issued with another redirect_uri"
        case .unspecified where redirectURI == nil:
            "it gives no reason that siwad knows. The request named no redirect_uri: a code of the web needs the one of its "
                + "authorization request"
        case .unspecified: "it gives no reason that siwad knows"
        }
    }
}

extension TokenAnswer {
    /// The label of the metric.
    fileprivate var result: String {
        switch self {
        case .issued: "issued"
        case .grantRefused: "grant-refused"
        case .requestRefused: "request-refused"
        case .clientRefused: "client-refused"
        case .unavailable(let unavailability): unavailability.cause.rawValue
        }
    }
}
