import JOSE

#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#else
    import Darwin
#endif

/// What the suites share: one key made for the run, tokens of any form signed with it.
enum Fixtures {
    /// A key pair; nil only where libcrypto doesn't work, which `requireKey()` reports.
    private static let made = Result { () throws(JOSEError) in try RSAPrivateKey.generate() }

    static func key() throws -> RSAPrivateKey { try made.get() }

    static let header = #"{"kid":"test","alg":"RS256"}"#

    /// A token whose signature is genuine, whatever its header says.
    static func token(header: String = header, payload: String = #"{"iss":"x"}"#) throws -> [UInt8] {
        try token(header: Array(header.utf8), payload: Array(payload.utf8))
    }

    static func token(header: [UInt8], payload: [UInt8]) throws -> [UInt8] {
        Array(try CompactJWS.signed(header: header, payload: payload, by: key()).utf8)
    }

    /// The token's three parts.
    static func parts(_ token: [UInt8]) -> [[UInt8]] {
        token.split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false).map(Array.init)
    }

    /// The code with which a token is refused; nil if it is taken.
    static func refusal(_ token: [UInt8]) -> JOSEError.Code? {
        do throws(JOSEError) {
            _ = try CompactJWS(parsing: token)
            return nil
        } catch {
            return error.code
        }
    }

    /// Whether a token is taken and its signature is the key's.
    static func isVerified(_ token: [UInt8], by verifier: RSAVerifier) -> Bool {
        do throws(JOSEError) {
            return verifier.isValid(try CompactJWS(parsing: token))
        } catch {
            return false
        }
    }
}

/// The real notifications and the key set that signed them. They are not part of the project.
enum Vectors {
    static let names = ["notification-2022-07.jws", "notification-2022-12.jws"]

    /// `SIWAD_VECTORS`, or the folder `shared/vectors` next to the checkout.
    static let folder: String = {
        if let path = getenv("SIWAD_VECTORS") { return String(cString: path) }
        let root = #filePath.split(separator: "/").dropLast(3).joined(separator: "/")
        return "/\(root)/../shared/vectors"
    }()

    static let areMissing = read("apple-keys-2022-07.json") == nil

    static func token(_ name: String) -> [UInt8] {
        (read(name) ?? []).filter { $0 != UInt8(ascii: "\n") }
    }

    static func read(_ name: String) -> [UInt8]? {
        guard let file = fopen("\(folder)/\(name)", "r") else { return nil }
        defer { fclose(file) }
        var content: [UInt8] = []
        var block = [UInt8](repeating: 0, count: 65536)
        while true {
            let count = fread(&block, 1, block.count, file)
            guard count > 0 else { return content }
            content += block[..<count]
        }
    }
}

/// A small generator with a fixed course, so that a failure can be repeated (SplitMix64).
struct SeededGenerator: RandomNumberGenerator {
    private var state: UInt64

    init(_ seed: UInt64) { state = seed }

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var value = state
        value = (value ^ value >> 30) &* 0xBF58_476D_1CE4_E5B9
        value = (value ^ value >> 27) &* 0x94D0_49BB_1331_11EB
        return value ^ value >> 31
    }
}

extension JSONWebKeySet {
    func key(_ keyID: String) -> JSONWebKey? {
        keys.first { $0.keyID == keyID }
    }
}
