// Package encryption decrypts layers of images that were encrypted by ocicrypt (github.com/containers/ocicrypt), as
// containerd and CRI-O do: layers whose media types end with +encrypted.
//
// The bytes of a layer are encrypted with a key of its own (AES-256 in counter mode, with an HMAC). An annotation of
// the layer has this key, encrypted in turn for the public keys of those who may read the image, as JSON Web
// Encryption. A private key of the node opens it. Then the layer is decrypted on its way to the children that unpack
// it.
//
// ocicrypt itself is not used. With it, berthd would load OpenPGP, PKCS #7 and PKCS #11, which parse what the author of
// an image has written, and would do so where the private keys are. Of the ways in which ocicrypt encrypts the key of a
// layer, only JWE is read, which is JSON.
package encryption
