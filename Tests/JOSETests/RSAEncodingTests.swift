import JOSE
import Testing

/// Signatures of a key over `message` that say something else than the padded digest. Only the holder of a private key can
/// make them, so they are kept here; `openssl dgst -verify` takes the first and refuses the others.
@Suite("What a signature has to say")
struct RSAEncodingTests {
    /// Of a key whose private half was thrown away.
    private static let modulus = """
        7scDhc_fPesj_w5DjqY-g3TCBWpZnIMm18c_b77vyomPrNQR78ROKJd6cG6Y3mtHu_r725mfUfMdeETTFMCVllkQSe0gAwY-vomX\
        keDuUtuJ6Aj-DEPmWu7oNPDhEuZL2kvM4chlmhfeziatr-YTUVJclOyrgZFGMKi0CfWjPKVk4f5HOWJcH3301UJwpsD7AYop9WjM\
        go5FemVVDPfyax3uG4hkwEweowqV8r_CjaFytv_6YelA8iH5DxHqgtceEWbx1bX98qnSdbUOqfCOEG3IOBqFpF7fSsDLKR_l6Z2G\
        QR_gAxd_5DkbsvQhjAxjr7EP1OGDgeZMnrNP754Vyw
        """

    /// What is wrong with what a signature says about `message`, and that signature.
    private static let encodings: [(fault: String, signature: String)] = [
        (
            "nothing",
            """
            CT4i7WhoeTb8iVme34M7j2UFCY06tGgueJFP9mf9Pyyhquaet0Zec0U4R3XimfnmgwML5YJWkKkvvp_vhoOVu3qTMliBYW1w2l5Z\
            jioDxrIu2QU119SAZbmT325dMNWuRLP6-F9h7NvZrpcyKQT0WKKqaFFtGLXUMCDXKHVNFQtE8RK2FtJCVjtPAwdNmu7QH0rs6MmX\
            aUpRfRuFdUAzqqKJHedG0SIENfpm18-qZT3MDXAB71jst1ljYDXIv6bvCIyug1pzVHmhgh5YG4ktl27Zkuw-r8RXTVoNsy6uGFma\
            A6_H3KvsfY3xgdf1TFAvwBK1E0c9vf_xiUx03eelDw
            """
        ),
        (
            "no parameters",
            """
            YxFW3cEp5K5foHfxEx0XGQZdH32oUfx4qg2orMeXOSoxWAChK8ohLNB02YXDwNXUYbLG27-RAKvoa0-Hx3L_d1mXd02Jg7oxFxHN\
            u2UAtXhGwnwAaxA3Bpb1vJ0ltsPGKxXUg_f7_bwJSRnDpHqbf7jkJ2im0Yy_5fAoTS6TYPv6tVqNgExjmFOWtU41tPbn1Z2lWUv-\
            MYEa6rX5rdrXYkYSj7Q_dnbW3cNmDdgZSU5RtrCxnD6P2BjXw0nwEozaFnlSrwl9tIah96Uv0ktQjUuRGaDiFUirs8Y58UHWDIXb\
            eBSpff1gizTapYS1afqb2zxwHE6C9L2S5O3hcM49AQ
            """
        ),
        (
            "lengths in long form",
            """
            6H5xiaAXKNLhV4XcSEoCQC_kUCGsDaDzB6V0WkZFgYyOt_jOCgEaQZoC1rKaocSYXan0aQvZON8C68d2uDkwajP9bNhHgefktPmg\
            p8886kftnnUGED0xLtNmhZQGFhSXGquVuFOMMLfK8ltF5-09KqipW6OJ9zoMGdTFvVu2w7SLo3LvzXV_ihNpZprz7oqkM2fky6UK\
            X-bI_jGptwxtu3UfQ65is5gLKTTsdJhrTI2rQXnwFOspwcKEkwtbISvxDekLqgA4ef8I39VWPCKMAfiAeuMHUqfMsmrxeXxL8ZL1\
            rW9uWELQoEpV0X3E9L-XA-CNQUzU6WEpuXaB0N3zlg
            """
        ),
        (
            "another digest's name",
            """
            SHqR2BL4GcP2XfYQfVLIoiNtirBqu6NKNL5NZ5hYi_0OltwIYu3lGOnT8flOAAt9SPxcPXQZFPQjf9LnUd9uVKx_B5XAB2NMINRS\
            q8zjD8ym5bEWtr4EkZ9xSnrDFVfb16OsE_DzNKjlN_tCtfwBdeyIb1M2-TUFEXvLkyYvx3wvXHFqXhrg-Tptt6ZmT_dbATnsf790\
            W2MLPkvnwuk5mf4huaMFrlMwx9yfPq7l0S4OVm696rlOkEsugEUiE74HKDp9-me0UbGPD25kNYlmrTMtreIppv-KoVzhpCbmFIzv\
            mWN_TYwSbIqyusn-FBjtKR7mMHL6wnkcenRmmAiU1w
            """
        ),
        (
            "the bare digest",
            """
            wwXERAa4iDihfr4ARXi7FRKu9ETflxy1UFPyV3ugjJvWMdjsQWzIC6v0nx4LmCpSvnOsnzJTmFs7zi49IhFuQTBVf8cSaGItIjJu\
            xyCTV9yzqrDg5ou5MUkZZz2LZvILjMzBOSi3UCZQhipJptkJhYtu4I0Dtx9Ny5WJRKfphhL8lULL6o9cW7QDz7KgZ_nP40J0LIOW\
            8XWMTk84oTJLChqk1d_cZO0hRrh6wd57LYM5D7653dd6L2q_xQgVlowXQTl6slZoz4PmAi7oQmm4I7RF1leYxscB53-Z3_ZpEqv9\
            OTon3wrfjkRW8rMsErlj78LvMWn9kqrpgiuEAT2ORQ
            """
        ),
        (
            "much behind the digest",
            """
            SA2qvVoAs_3xxsxmZ6uGPDu9EISufw-ONaNo679wXBTvFkBtii9Mq0Q6v59GQljg50uD1tS5DPRQ0m74fXxRcElL9wfbdRESE7Jr\
            -7OfXM2xEDZ0DvUYj74yuJqy0igxZDLUL9oNZ61g19ExOY-NofWXBCD2TydpeurE-_Pj0BH_LLcm9lZQdkBwAg-lRP9LIusjQrYz\
            dSwHnq2vAZRLgro6pB1VbL-5EZD2MMR8WDpg8LO3yPHG_jaAhfiU70LnfWB56dlrfwX7yIsDrtFNQ3tWso9aaWHVRX5C09CTNv4l\
            HXRtJ3F1aJeekITZIwV80b3p__0WTNlZ-Bp0SVTKfw
            """
        ),
        (
            "the digest at the end, and another before",
            """
            shTtAAQW8qqoV_dLyER8ZL8dJD3Jdh0TArbiy5F5edUf2nJkoI1QrA5d6WArtd346rb5-IV1xS9oZEIxIGs9T8jGs4C0s1l5-ho2\
            mCVtOLF0tH-33JD1UuRd6II8FSil1rgIlrrU2dC9EpRv5nlBsIWITHAc1M2KLrqSQ3iPfc_SMimma-A9vRO-46XnDRUMd6JGMrX2\
            FbV1_4ftJY7c14A3-Kdc6uzhdWQ1fr-0DifWXENVCCkGZvdZDrE9FeZV4yigtjLdDzTEnRO7lieZN8w2shv0Ep6rURPn9BVhX7Th\
            gjKt5wv4DVUxWZWfbEo7qy7guf6OO09O_e_w67coaQ
            """
        ),
        (
            "encryption's type of block",
            """
            ORC97aR_SUZv6ZMukr-dv8IecwcPbT_DMeKMSJNpeXRBoGWjAiKkzLiu9Ok25VazdXSNpQzot-T2cIQtkdtAQ_wbF9qMQ_HuIDHM\
            _F2m794w7--m-SNi3P4JISXM5AbCzFjlgJwbFSmeVXhwguOoX9Mt5sqyo6h9KxRhw7MdpoPHCJDkRwnp2_0X4aQMmm4Ek2TvRWCZ\
            IfKpROXLJxCkWulrKlr0HqvN0EEj2Xt6wRWb99W5J-dL4BIxI3Wy8-NR65_cPh-x58jlCkvNUfh4BjRWEJ3EvyP_0fZ4tgrC8iIx\
            Mb_OsY8L2C5xcf023jorBqwKR1D5yiM96cQDvhUIwg
            """
        ),
        (
            "a byte of the padding",
            """
            u24k9EIAgFAPOBn06WrQqR1RIojs-QhQbosX4G7jhIcRzcB70BXxLI2EgcYEVl4vnVyS9Fpr_Amua5TxJfcXBTjGp4nEiAZuvwo8\
            Xlhe0r-klBQqLjBY06Vwx5zsMdWOju00vk2j2F3Rj3Ygb92EduQrtVIuPZmg2KpxsWFCBLIyYD8a9Xzj_1Lhq4b80chceqJmTQDN\
            ub3JqWQWyN_-M5dsurCTUbKtgQ5n4hnsD7PYOJfprtt8GAUNZ8JUC8H2H52dQhqp2mmYjHe2Qm3q81VdJn3kZYHrA-p8SBL9b1ux\
            aX7uWG_62OU2u5Hz4lIIrUTOyryvNfIMtZptbFfPug
            """
        ),
        (
            "a zero within the padding",
            """
            TkPlwg_BG2TzlizSw4QaQTcnaq62yASTcqP2thmscpA_KzbVZbJVJgVkLMY2HFde2qoPcw9mnA5JgW6fhWLahE19HBd-XLehGvL3\
            8eIn5he5xiRuAQFOoDO9oZpfOrFDMagkGyRhkZszZM4uzrLhCu5ChB1TMUS_-nWtL50S5Yfi96Xu-c1hSx1ZRSGynaY54JF9IpOi\
            d2OQRsfkkbNR2qlyTXhFxf2BPi1JfsCPbeBybh5RuHlpgwjP-8lSIXIVezbAyNC9t03GMpe8H9s32oXaxPkKrW3AJKH41IXYFoo-\
            P0ge_INkVTPa1-jfGmbUb73KFrGdLtz3Wr9rqzTVWg
            """
        ),
        (
            "no padding",
            """
            kQnMMZbUUjGsmVtdGmh45SEACH2ZkQInolFtRftMwNtGY9UMYiLAVwHb1kZ2iYvp2ckB2M9KBdrRtN65ZUTzOEjyXXReAS49crpo\
            R5EADg0fAr463UtqiZFcv-PF3zbNs-a4DnMNMK2hnBXZSQ3XcayFtIDhjgWZjz8K9_NfVD4e4klKZYEX5L37Cp7DoO4rBtA5xM_l\
            rwvK5w-_-S0MyMiy0hoUrsxyl4ZBDiE02I3FzOKQL1kIEXgegqv-QpUkKxt1kBx_7k13in5OFfV8kx8mvKar0q95PPw-0FIfjsK6\
            3JOsdt-BJl9HnrnPsZSFaHFyfkBPgcltr7stSzxv4A
            """
        ),
    ]

    @Test("A signature says the padded digest to the byte, or is refused.", arguments: encodings)
    func encoding(_ sample: (fault: String, signature: String)) throws {
        let key = try RSAPublicKey(modulus: Base64URL.decode(Self.modulus), exponent: [1, 0, 1])
        let verifier = try RSAVerifier(key)
        let (signature, message) = (try Base64URL.decode(sample.signature), Array("message".utf8))
        let isValid = verifier.isValid(signature: signature.span, over: message.span)
        #expect(isValid == (sample.fault == "nothing"))
    }
}
