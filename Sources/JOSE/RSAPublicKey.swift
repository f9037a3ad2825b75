/// An RSA public key that is fit for RS256: its numbers, checked.
///
/// It holds no handle of libcrypto. Whoever verifies makes an `RSAVerifier` of it, one for each thread.
package struct RSAPublicKey: Sendable, Hashable {
    /// The sizes of modulus that are accepted, in bits: RFC 7518 §3.3 wants 2048 or more; beyond 8192 a signature costs too
    /// much to check.
    package static let modulusBits = 2048...8192

    /// The modulus, big-endian, without leading zeros.
    package let modulus: [UInt8]

    /// The public exponent: odd, 65537 or more.
    package let exponent: UInt32

    /// The size of the modulus in bits.
    package let bits: Int

    /// Checks the numbers of a key, both big-endian.
    ///
    /// - Throws: `unusableKey`.
    package init(modulus: [UInt8], exponent: [UInt8]) throws(JOSEError) {
        guard let first = modulus.first, let last = modulus.last, first != 0 else {
            throw Self.unusable("the modulus is empty or begins with a zero byte")
        }
        let bits = modulus.count * 8 - first.leadingZeroBitCount
        guard Self.modulusBits.contains(bits) else {
            throw Self.unusable("the modulus has \(bits) bits, not 2048 to 8192")
        }
        guard last & 1 == 1 else { throw Self.unusable("the modulus is even") }
        guard let leading = exponent.first, leading != 0, exponent.count <= 4 else {
            throw Self.unusable("the exponent is empty, begins with a zero byte or is longer than 32 bits")
        }
        let value = exponent.reduce(0 as UInt32) { $0 << 8 | UInt32($1) }
        guard value & 1 == 1, value >= 65537 else {
            throw Self.unusable("the exponent is even or smaller than 65537")
        }
        self.modulus = modulus
        self.exponent = value
        self.bits = bits
    }

    /// The exponent, big-endian, without leading zeros.
    package var exponentBytes: [UInt8] {
        let bytes = [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: exponent >> $0) }
        return Array(bytes.drop { $0 == 0 })
    }

    private static func unusable(_ message: String) -> JOSEError {
        JOSEError(code: .unusableKey, message: message)
    }
}
