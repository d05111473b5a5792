package table

import (
	"errors"
	"fmt"
)

// StructuredFlag is the value of -o without wide.
type StructuredFlag struct{ *Format }

func (f *StructuredFlag) Set(text string) error {
	if text == "name" {
		return errors.New(`"name" is for lists, such as those of ps and images; ` +
			"this command takes json, yaml, jsonpath=TEMPLATE and go-template=TEMPLATE")
	}
	if format := Format(text); !format.Structured() {
		return fmt.Errorf("%q is not one of json, yaml, jsonpath=TEMPLATE and go-template=TEMPLATE", text)
	}
	return f.Format.Set(text)
}

// ListFlag is -o of a list, which may be reduced to names as well.
type ListFlag struct {
	*Format
	Names *bool
}

func (f *ListFlag) Set(text string) error {
	*f.Names = text == "name"
	if *f.Names {
		*f.Format = Table
		return nil
	}
	err := f.Format.Set(text)
	var unknown *unknownFormatError
	if errors.As(err, &unknown) {
		unknown.name = true
	}
	return err
}
