internal import COpenSSL

/// RSAVP1 of one key: what a signature says, by raising it to the public exponent (RFC 8017 §5.2.2).
///
/// Every multiplication is libcrypto's, in Montgomery's form, from which the last one leads back. `EVP_PKEY_verify` does
/// the same with two more of them and a dozen allocations each time: a sixth of what a verification takes. Signature and
/// key are public, so nothing depends on how long it takes. Not `Sendable`: it reuses its numbers.
@safe struct RSAPublicOperation: ~Copyable {
    private let exponent: UInt32
    private let modulus: Number
    private let arithmetic: Arithmetic
    /// The signature, as it is and in Montgomery's form, and its power.
    private let base: Number
    private let factor: Number
    private let power: Number

    /// - Throws: `cryptography`.
    init(_ key: RSAPublicKey) throws(JOSEError) {
        let modulus = try Number()
        let arithmetic = try Arithmetic()
        guard unsafe BN_bin2bn(key.modulus, CInt(key.modulus.count), modulus.pointer) != nil,
            unsafe BN_MONT_CTX_set(arithmetic.montgomery, modulus.pointer, arithmetic.context) == 1
        else { throw LibCrypto.failure("prepare a verification") }
        let base = try Number()
        let factor = try Number()
        power = try Number()
        self.modulus = modulus
        self.arithmetic = arithmetic
        self.base = base
        self.factor = factor
        exponent = key.exponent
    }

    /// Puts what `signature` says into `message`, which it fills. False: the signature is no number below the modulus, or
    /// libcrypto is out of memory.
    func recover(_ signature: Span<UInt8>, into message: inout [UInt8]) -> Bool {
        let isRead = unsafe signature.withUnsafeBufferPointer { signature in
            unsafe BN_bin2bn(signature.baseAddress, CInt(signature.count), base.pointer) != nil
        }
        guard isRead, unsafe BN_ucmp(base.pointer, modulus.pointer) < 0, raise() else { return false }
        return unsafe BN_bn2binpad(power.pointer, &message, CInt(message.count)) == CInt(message.count)
    }

    /// Squares for each bit of the exponent behind its first, and multiplies where the bit is set. The last one is, and
    /// the base taken there as it is, not in Montgomery's form, leads the result back out of it.
    private func raise() -> Bool {
        guard
            unsafe BN_to_montgomery(factor.pointer, base.pointer, arithmetic.montgomery, arithmetic.context) == 1,
            unsafe BN_copy(power.pointer, factor.pointer) != nil
        else { return false }
        for bit in (0..<(UInt32.bitWidth - 1 - exponent.leadingZeroBitCount)).reversed() {
            guard multiplyPower(by: power) else { return false }
            guard exponent >> UInt32(bit) & 1 == 1 else { continue }
            guard bit == 0 ? multiplyPower(by: base) : multiplyPower(by: factor) else { return false }
        }
        return true
    }

    private func multiplyPower(by number: borrowing Number) -> Bool {
        unsafe BN_mod_mul_montgomery(
            power.pointer,
            power.pointer,
            number.pointer,
            arithmetic.montgomery,
            arithmetic.context
        ) == 1
    }
}

extension RSAPublicOperation {
    /// A number of libcrypto's, freed with this value.
    @safe private struct Number: ~Copyable {
        let pointer: OpaquePointer

        init() throws(JOSEError) {
            guard let pointer = unsafe BN_new() else { throw LibCrypto.failure("prepare a verification") }
            unsafe self.pointer = pointer
        }

        deinit { unsafe BN_free(pointer) }
    }

    /// What libcrypto keeps for calculating by a modulus, freed with this value.
    @safe private struct Arithmetic: ~Copyable {
        let montgomery: OpaquePointer
        let context: OpaquePointer

        init() throws(JOSEError) {
            let (montgomery, context) = unsafe (BN_MONT_CTX_new(), BN_CTX_new())
            guard let montgomery = unsafe montgomery, let context = unsafe context else {
                unsafe BN_MONT_CTX_free(montgomery)
                unsafe BN_CTX_free(context)
                throw LibCrypto.failure("prepare a verification")
            }
            unsafe self.montgomery = montgomery
            unsafe self.context = context
        }

        deinit {
            unsafe BN_MONT_CTX_free(montgomery)
            unsafe BN_CTX_free(context)
        }
    }
}
