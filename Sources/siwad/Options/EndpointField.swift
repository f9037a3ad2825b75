import AccountStore
import Effects
import Settings
import WebClient

/// A part of an endpoint's configuration. The raw value is its key in the file of `siwad endpoints apply`.
enum EndpointField: String, CaseIterable, Sendable {
    case url
    case types
    case apps
    case ordering
    case concurrency
    case timeout
    case rate
    case retries
    case disableAfter = "disable_after"
    case signature
    case include

    /// True if several values can be given.
    var takesList: Bool { [.types, .apps, .retries, .include].contains(self) }

    /// Sets the value.
    ///
    /// - Parameter texts: one, or several if ``takesList``.
    /// - Throws: what to write instead.
    func set(_ texts: [String], in configuration: inout EndpointConfiguration) throws(MalformedEndpoint) {
        let text = texts.first ?? ""
        switch self {
        case .url:
            do throws(WebClientError) {
                _ = try EndpointURL(parsing: text)
            } catch {
                throw MalformedEndpoint(error.message)
            }
            configuration.url = text
        case .types:
            let kinds = try texts.map { text throws(MalformedEndpoint) in
                guard let kind = ChangeEvent.Kind(argument: text) else {
                    let all = ChangeEvent.Kind.allCases.map(\.rawValue).joined(separator: ", ")
                    throw MalformedEndpoint("\(Redaction.redacted(text)) is not a type: write one of \(all)")
                }
                return kind
            }
            configuration.types = ChangeEvent.Kind.allCases.filter(kinds.contains).map(\.rawValue)
        case .apps:
            guard texts.allSatisfy({ !$0.isEmpty && !$0.contains(where: \.isWhitespace) }) else {
                throw MalformedEndpoint("write primary App IDs, such as com.example.app")
            }
            configuration.apps = Set(texts).sorted()
        case .ordering: configuration.ordering = try Self.word(text)
        case .concurrency:
            guard let number = Int(text), 1...64 ~= number else {
                throw MalformedEndpoint("write a whole number from 1 to 64")
            }
            configuration.concurrency = number
        case .timeout: configuration.timeout = try Self.duration(text, in: .seconds(1)...(.seconds(60)))
        case .rate:
            guard let number = Double(text), 0.001...1_000_000 ~= number else {
                throw MalformedEndpoint("write a number of requests in a second, such as 5 or 0.5; at most 1000000")
            }
            configuration.rate = number
        case .retries:
            let longest = Duration.seconds(365 * 86_400)
            guard texts != [""] else {
                throw MalformedEndpoint("write durations such as 5s,5m,30m, or none for a single attempt")
            }
            guard texts.count <= 50 else { throw MalformedEndpoint("write at most 50 durations") }
            configuration.retries =
                texts == ["none"]
                ? []
                : try texts.map { text throws(MalformedEndpoint) in
                    try Self.duration(text, in: .milliseconds(1)...longest)
                }
        case .disableAfter:
            configuration.disableAfter = try Self.duration(text, in: .zero...(.seconds(3_650 * 86_400)))
        case .signature: configuration.signature = try Self.word(text)
        case .include:
            guard texts == ["email"] || texts == ["none"] else { throw MalformedEndpoint("write email or none") }
            configuration.include = texts.filter { $0 == "email" }
        }
    }

    /// Gives the field the value that it has where none is given. A URL is always given.
    func reset(in configuration: inout EndpointConfiguration) {
        let usual = EndpointConfiguration(name: configuration.name, url: configuration.url)
        switch self {
        case .url: break
        case .types: configuration.types = usual.types
        case .apps: configuration.apps = usual.apps
        case .ordering: configuration.ordering = usual.ordering
        case .concurrency: configuration.concurrency = usual.concurrency
        case .timeout: configuration.timeout = usual.timeout
        case .rate: configuration.rate = usual.rate
        case .retries: configuration.retries = usual.retries
        case .disableAfter: configuration.disableAfter = usual.disableAfter
        case .signature: configuration.signature = usual.signature
        case .include: configuration.include = usual.include
        }
    }

    /// The value as ``set(_:in:)`` takes it; empty if the field has none. A URL is without its query, which may be secret.
    func texts(in configuration: EndpointConfiguration) -> [String] {
        switch self {
        case .url: configuration.shownURL.map { [$0] } ?? []
        case .types: configuration.types ?? []
        case .apps: configuration.apps ?? []
        case .ordering: [configuration.ordering.rawValue]
        case .concurrency: ["\(configuration.concurrency)"]
        case .timeout: [configuration.timeout.short]
        case .rate: configuration.rate.map { [Int(exactly: $0).map { "\($0)" } ?? "\($0)"] } ?? []
        case .retries: configuration.retries.map(\.short)
        case .disableAfter: [configuration.disableAfter.short]
        case .signature: [configuration.signature.rawValue]
        case .include: configuration.include
        }
    }

    private static func word<Word>(_ text: String) throws(MalformedEndpoint) -> Word
    where Word: RawRepresentable<String> & CaseIterable {
        guard let word = Word(rawValue: text) else {
            throw MalformedEndpoint("write \(Word.allCases.map(\.rawValue).joined(separator: ", "))")
        }
        return word
    }

    private static func duration(
        _ text: String,
        in range: ClosedRange<Duration>
    ) throws(MalformedEndpoint) -> Duration {
        guard let duration = Duration(short: text), range.contains(duration) else {
            throw MalformedEndpoint("write a duration from \(range.lowerBound.short) to \(range.upperBound.short)")
        }
        return duration
    }
}

/// Why a value can't be a part of an endpoint, and what to write.
struct MalformedEndpoint: Error, Sendable, Equatable {
    let advice: String

    init(_ advice: String) {
        self.advice = advice
    }
}

extension EndpointConfiguration {
    /// The URL without a user part and without the query, which may be secrets.
    var shownURL: String? {
        guard let url else { return nil }
        // Another program may have written a URL that siwad refuses.
        guard let parsed = try? EndpointURL(parsing: url) else { return Redaction.mask }
        return parsed.description
    }

    /// - Throws: if daemons and metrics couldn't use it.
    static func check(name: String) throws(MalformedEndpoint) {
        let isLabel = name.utf8.allSatisfy { byte in
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "0")...UInt8(ascii: "9"): true
            default: byte == UInt8(ascii: "-")
            }
        }
        guard isLabel, 1...63 ~= name.utf8.count, !name.hasPrefix("-") else {
            throw MalformedEndpoint(
                "name an endpoint with 1 to 63 lower-case letters, digits and hyphens, not beginning with a hyphen"
            )
        }
    }
}
