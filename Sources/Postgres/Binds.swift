import Glibc

/// The values for `$1`, `$2` … of a ``Statement``, in order, in PostgreSQL's binary form.
///
/// All values stand in one buffer, so that appending neither allocates for each value nor copies it twice. A text with
/// a NUL, which PostgreSQL cannot hold, is refused when the statement is executed, before anything is sent.
package struct Binds: Sendable {
    /// Where in the buffer one value stands, and of which type it is.
    struct Value: Sendable {
        var type: UInt32
        var offset: Int
        /// In bytes; -1 is NULL.
        var length: Int
    }

    /// All values, one after another.
    private(set) var buffer: [UInt8] = []
    /// One for each parameter.
    private(set) var values: [Value] = []
    /// The first parameter, counted from 1, that cannot be sent.
    private(set) var firstWithNUL: Int?

    /// No values.
    package init() {}

    /// The values that `build` appends.
    package init(_ build: (inout Binds) -> Void) {
        build(&self)
    }

    /// How many parameters have a value.
    package var count: Int { values.count }

    /// Forgets the values and keeps the room that they took.
    package mutating func removeAll() {
        buffer.removeAll(keepingCapacity: true)
        values.removeAll(keepingCapacity: true)
        firstWithNUL = nil
    }

    /// Makes room for this many bytes of values.
    package mutating func reserveCapacity(bytes: Int) {
        buffer.reserveCapacity(bytes)
    }

    /// Binds a `text`.
    package mutating func append(_ value: String?) {
        append(ServerType.text, value) { $0.writeText($1) }
    }

    /// Binds a `bigint`.
    package mutating func append(_ value: Int64?) {
        append(ServerType.int8, value) { $0.writeInteger($1) }
    }

    /// Binds an `integer`.
    package mutating func append(_ value: Int32?) {
        append(ServerType.int4, value) { $0.writeInteger($1) }
    }

    /// Binds a `boolean`.
    package mutating func append(_ value: Bool?) {
        append(ServerType.bool, value) { $0.writeInteger(UInt8($1 ? 1 : 0)) }
    }

    /// Binds a `timestamptz`.
    package mutating func append(_ value: Timestamp?) {
        append(ServerType.timestamptz, value) { $0.writeInteger($1.serverValue) }
    }

    /// Binds a `bytea`.
    package mutating func append(bytes value: [UInt8]?) {
        append(ServerType.bytea, value) { $0.writeBytes($1) }
    }

    /// Binds a `text` by its UTF-8.
    package mutating func append(textBytes value: [UInt8]?) {
        append(ServerType.text, value) { $0.writeText($1) }
    }

    /// Appends one parameter, NULL or what `write` writes.
    private mutating func append<T>(_ type: UInt32, _ value: T?, write: (inout Binds, T) -> Void) {
        let offset = buffer.count
        guard let value else {
            values.append(Value(type: type, offset: offset, length: -1))
            return
        }
        write(&self, value)
        values.append(Value(type: type, offset: offset, length: buffer.count - offset))
    }
}

// MARK: - Arrays

extension Binds {
    /// Appends one parameter that is an array of `count` elements, each written by `write` with its length before it;
    /// `write` writes nothing and returns false for NULL.
    ///
    /// The form is `array_recv`'s: number of dimensions, whether there are NULLs, element type, then for the one
    /// dimension its length and lower bound, then the elements.
    mutating func appendArray(
        _ type: UInt32,
        of element: UInt32,
        count: Int,
        write: (inout Binds, Int) -> Bool
    ) {
        let offset = buffer.count
        writeInteger(Int32(count == 0 ? 0 : 1))
        let nullFlag = buffer.count
        writeInteger(Int32(0))
        writeInteger(element)
        if count > 0 {
            writeInteger(Int32(clamping: count))
            writeInteger(Int32(1))
        }
        for index in 0..<count where !write(&self, index) {
            writeInteger(Int32(-1))
            // The last byte of the flag, big-endian.
            buffer[nullFlag + 3] = 1
        }
        values.append(Value(type: type, offset: offset, length: buffer.count - offset))
    }

    /// Appends one parameter that is an array of `count` integers, which need no look at their contents: the room for
    /// them is made once and filled from the front.
    mutating func appendIntegers<T: FixedWidthInteger>(
        _ type: UInt32,
        of element: UInt32,
        count: Int,
        _ value: (Int) -> T?
    ) {
        let offset = buffer.count
        let header = count == 0 ? 12 : 20
        let size = MemoryLayout<T>.size
        buffer.append(contentsOf: repeatElement(0, count: header + count * (4 + size)))
        let end = unsafe buffer.withUnsafeMutableBytes { bytes in
            var place = offset
            func write<I: FixedWidthInteger>(_ integer: I) {
                unsafe bytes.storeBytes(of: integer.bigEndian, toByteOffset: place, as: I.self)
                place += MemoryLayout<I>.size
            }
            write(Int32(count == 0 ? 0 : 1))
            write(Int32(0))
            write(element)
            guard count > 0 else { return place }
            write(Int32(clamping: count))
            write(Int32(1))
            for index in 0..<count {
                if let value = value(index) {
                    write(Int32(size))
                    write(value)
                } else {
                    write(Int32(-1))
                    unsafe bytes.storeBytes(of: Int32(1).bigEndian, toByteOffset: offset + 4, as: Int32.self)
                }
            }
            return place
        }
        buffer.removeLast(buffer.count - end)
        values.append(Value(type: type, offset: offset, length: end - offset))
    }

    /// Writes a big-endian integer.
    mutating func writeInteger<T: FixedWidthInteger>(_ value: T) {
        unsafe withUnsafeBytes(of: value.bigEndian) { unsafe buffer.append(contentsOf: $0) }
    }

    /// Writes a text that is an element of an array.
    mutating func writeElement(_ value: String) {
        writeInteger(Int32(clamping: value.utf8.count))
        writeText(value)
    }

    /// Writes a text that is an element of an array, by its UTF-8.
    mutating func writeElement(_ value: [UInt8]) {
        writeInteger(Int32(clamping: value.count))
        writeText(value)
    }

    /// Writes a text, and remembers this parameter if it holds a NUL.
    mutating func writeText(_ value: String) {
        let start = buffer.count
        buffer.append(contentsOf: value.utf8)
        checkForNUL(from: start)
    }

    /// Writes a text by its UTF-8, and remembers this parameter if it holds a NUL.
    mutating func writeText(_ value: [UInt8]) {
        let start = buffer.count
        buffer.append(contentsOf: value)
        checkForNUL(from: start)
    }

    /// Writes bytes as they are.
    mutating func writeBytes(_ value: [UInt8]) {
        buffer.append(contentsOf: value)
    }

    private mutating func checkForNUL(from start: Int) {
        let count = buffer.count - start
        guard count > 0, firstWithNUL == nil else { return }
        let found = unsafe buffer.withUnsafeBytes { bytes in
            guard let base = bytes.baseAddress else { return false }
            return unsafe memchr(base + start, 0, count) != nil
        }
        if found {
            firstWithNUL = values.count + 1
        }
    }
}
