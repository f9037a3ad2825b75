import Glibc

/// The values for `$1`, `$2` … of a ``Statement``, in order, in PostgreSQL's binary form.
///
/// One buffer holds all values, so that appending neither allocates per value nor copies twice. A text with a NUL, which
/// PostgreSQL cannot store, is refused at execution, before anything is sent.
package struct Binds: Sendable {
    struct Value: Sendable {
        var type: UInt32
        /// In the buffer.
        var offset: Int
        /// In bytes; -1 is NULL.
        var length: Int
    }

    private(set) var buffer: [UInt8] = []
    private(set) var values: [Value] = []
    /// The first parameter, counted from 1, that contains a NUL.
    private(set) var firstWithNUL: Int?

    package init() {}

    /// The values that `build` appends.
    package init(_ build: (inout Binds) -> Void) {
        build(&self)
    }

    package var count: Int { values.count }

    /// Removes the values and keeps the allocated memory.
    package mutating func removeAll() {
        buffer.removeAll(keepingCapacity: true)
        values.removeAll(keepingCapacity: true)
        firstWithNUL = nil
    }

    package mutating func reserveCapacity(bytes: Int) {
        buffer.reserveCapacity(bytes)
    }
}

// MARK: - Single values

extension Binds {
    package mutating func append(_ value: String?) {
        append(ServerType.text, value) { $0.writeText($1.utf8) }
    }

    package mutating func append(_ value: Int64?) {
        append(ServerType.int8, value) { $0.writeInteger($1) }
    }

    package mutating func append(_ value: Int32?) {
        append(ServerType.int4, value) { $0.writeInteger($1) }
    }

    package mutating func append(_ value: Bool?) {
        append(ServerType.bool, value) { $0.writeInteger(UInt8($1 ? 1 : 0)) }
    }

    package mutating func append(_ value: Timestamp?) {
        append(ServerType.timestamptz, value) { $0.writeInteger($1.serverValue) }
    }

    /// Appends a `bytea`.
    package mutating func append(bytes value: [UInt8]?) {
        append(ServerType.bytea, value) { $0.buffer.append(contentsOf: $1) }
    }

    /// Appends a `text`, given as UTF-8.
    package mutating func append(textBytes value: [UInt8]?) {
        append(ServerType.text, value) { $0.writeText($1) }
    }
}

// MARK: - Arrays

/// The functions with a closure read the elements in place, so that the caller needs no array.
extension Binds {
    package mutating func append(array: [String?]) {
        appendTexts(array.count) { array[$0] }
    }

    /// Appends a `bytea[]`.
    package mutating func append(byteArrays array: [[UInt8]?]) {
        appendBytes(array.count) { array[$0] }
    }

    package mutating func append(array: [Int64?]) {
        appendInt64s(array.count) { array[$0] }
    }

    package mutating func append(array: [Int32?]) {
        appendArray(ServerType.int4Array, of: ServerType.int4, array.count, { array[$0] }) { $0.writeInteger($1) }
    }

    package mutating func appendTexts(_ count: Int, _ element: (Int) -> String?) {
        appendArray(ServerType.textArray, of: ServerType.text, count, element) { $0.writeText($1.utf8) }
    }

    /// Appends a `text[]`, with its elements given as UTF-8.
    package mutating func appendTextBytes(_ count: Int, _ element: (Int) -> [UInt8]?) {
        appendArray(ServerType.textArray, of: ServerType.text, count, element) { $0.writeText($1) }
    }

    /// Appends a `bytea[]`.
    package mutating func appendBytes(_ count: Int, _ element: (Int) -> [UInt8]?) {
        appendArray(ServerType.byteaArray, of: ServerType.bytea, count, element) { $0.buffer.append(contentsOf: $1) }
    }

    package mutating func appendInt64s(_ count: Int, _ element: (Int) -> Int64?) {
        appendArray(ServerType.int8Array, of: ServerType.int8, count, element) { $0.writeInteger($1) }
    }

    package mutating func appendBools(_ count: Int, _ element: (Int) -> Bool?) {
        appendArray(ServerType.boolArray, of: ServerType.bool, count, element) { $0.writeInteger(UInt8($1 ? 1 : 0)) }
    }

    package mutating func appendTimestamps(_ count: Int, _ element: (Int) -> Timestamp?) {
        appendArray(ServerType.timestamptzArray, of: ServerType.timestamptz, count, element) {
            $0.writeInteger($1.serverValue)
        }
    }
}

// MARK: - Private parts

extension Binds {
    /// Appends one parameter: NULL, or what `write` writes.
    private mutating func append<T>(_ type: UInt32, _ value: T?, write: (inout Binds, T) -> Void) {
        let offset = buffer.count
        guard let value else {
            values.append(Value(type: type, offset: offset, length: -1))
            return
        }
        write(&self, value)
        values.append(Value(type: type, offset: offset, length: buffer.count - offset))
    }

    /// Appends one parameter that is an array of `count` elements; a nil element is NULL.
    ///
    /// This is the format of `array_recv`: number of dimensions, whether there are NULLs, and element type; the length and
    /// lower bound of the only dimension; then each element after its length.
    private mutating func appendArray<T>(
        _ type: UInt32,
        of elementType: UInt32,
        _ count: Int,
        _ element: (Int) -> T?,
        write: (inout Binds, T) -> Void
    ) {
        let offset = buffer.count
        writeInteger(Int32(count == 0 ? 0 : 1))
        let nullFlag = buffer.count
        writeInteger(Int32(0))
        writeInteger(elementType)
        if count > 0 {
            writeInteger(Int32(clamping: count))
            writeInteger(Int32(1))
        }
        for index in 0..<count {
            let lengthOffset = buffer.count
            writeInteger(Int32(-1))
            if let value = element(index) {
                write(&self, value)
                setInteger(Int32(clamping: buffer.count - lengthOffset - 4), at: lengthOffset)
            } else {
                setInteger(Int32(1), at: nullFlag)
            }
        }
        values.append(Value(type: type, offset: offset, length: buffer.count - offset))
    }

    /// Appends a big-endian integer.
    private mutating func writeInteger<T: FixedWidthInteger>(_ value: T) {
        // The bytes of a local variable, which are copied.
        unsafe withUnsafeBytes(of: value.bigEndian) { unsafe buffer.append(contentsOf: $0) }
    }

    /// Overwrites a big-endian integer.
    private mutating func setInteger(_ value: Int32, at offset: Int) {
        for byte in 0..<4 { buffer[offset + byte] = UInt8(truncatingIfNeeded: value >> (24 - 8 * byte)) }
    }

    /// Appends UTF-8, and marks this parameter if it contains a NUL.
    private mutating func writeText(_ utf8: some Collection<UInt8>) {
        let start = buffer.count
        buffer.append(contentsOf: utf8)
        let count = buffer.count - start
        guard count > 0, firstWithNUL == nil else { return }
        // `memchr` reads exactly the bytes just appended.
        let containsNUL = unsafe buffer.withUnsafeBytes { bytes in
            guard let base = bytes.baseAddress else { return false }
            return unsafe memchr(base + start, 0, count) != nil
        }
        if containsNUL { firstWithNUL = values.count + 1 }
    }
}

/// The built-in types that this client binds and reads, by their fixed object ids (`pg_type.dat`).
enum ServerType {
    static let bool: UInt32 = 16
    static let bytea: UInt32 = 17
    static let char: UInt32 = 18
    static let name: UInt32 = 19
    static let int8: UInt32 = 20
    static let int2: UInt32 = 21
    static let int4: UInt32 = 23
    static let text: UInt32 = 25
    static let json: UInt32 = 114
    static let unknown: UInt32 = 705
    static let bpchar: UInt32 = 1042
    static let varchar: UInt32 = 1043
    static let timestamptz: UInt32 = 1184
    static let jsonb: UInt32 = 3802

    static let boolArray: UInt32 = 1000
    static let byteaArray: UInt32 = 1001
    static let int4Array: UInt32 = 1007
    static let textArray: UInt32 = 1009
    static let int8Array: UInt32 = 1016
    static let timestamptzArray: UInt32 = 1185

    /// The first object id that a user's own type, such as an enum, can have.
    static let firstOfUsers: UInt32 = 16_384
}
