// Package layertar makes the tar of a layer again from the directory into which the layer was unpacked. For this it
// keeps a record: all bytes of the tar except the contents of its files, and the names of these files. A tar that is
// made again is used only if it has the digest that the image's configuration names.
//
// A record is read in a confined child (Role), because the child that wrote it may have been taken over by a hostile
// layer. berthd itself reads only the first bytes, which are at a fixed place (ReadHead).
package layertar
